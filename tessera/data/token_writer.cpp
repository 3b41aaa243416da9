#include "tessera/data/token_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/data/mapped_file.h"

namespace tessera::data {
namespace {

// A file of a shard, which grows.
class ShardFile {
 public:
  // Made anew where `bytes` is 0, else as it was when it had so many, with this checksum.
  void open(std::string path, std::uint64_t bytes, std::uint32_t crc) {
    path_ = std::move(path);
    const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (bytes == 0 ? O_CREAT | O_TRUNC : 0);
    fd_ = Fd(::open(path_.c_str(), flags, 0666));
    if (!fd_.open()) fail("open");
    if (bytes == 0) return;
    check(bytes, crc);
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) fail("cut");
  }
  void write(std::uint64_t offset, const void* data, std::size_t bytes) const {
    const auto* from = static_cast<const std::byte*>(data);
    const std::uint64_t begin = offset;
    while (bytes > 0) {
      const ssize_t n = ::pwrite(fd_.get(), from, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write");
      from += n;
      offset += static_cast<std::uint64_t>(n);
      bytes -= static_cast<std::size_t>(n);
    }
    // Begin the way to the disk now: sync() then waits for little. Only a hint.
    (void)::sync_file_range(fd_.get(), static_cast<off_t>(begin),
                            static_cast<off_t>(offset - begin), SYNC_FILE_RANGE_WRITE);
  }
  void sync() const {
    if (fd_.open() && ::fdatasync(fd_.get()) != 0) fail("sync");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const int error = errno;
    throw DataError(
        str("cannot ", what, " ", quote(path_), ": ", std::strerror(error), advice_on(error)));
  }
  void check(std::uint64_t bytes, std::uint32_t crc) const {
    const MappedFile mapped(fd_, path_);
    const std::string what = "; begin anew with --restart";
    if (mapped.size() < bytes) {
      throw DataError(str(quote(path_), " has ", mapped.size(), " bytes, wanted at least the ",
                          bytes, " that were written before prepare stopped", what));
    }
    const std::uint32_t got = checkpoint::crc32c(mapped.bytes().data(), bytes);
    if (got != crc) {
      throw DataError(str(quote(path_), " has the checksum ", checkpoint::to_hex({got}),
                          " up to byte ", bytes, ", wanted ", checkpoint::to_hex({crc}),
                          ": it was changed since prepare stopped", what));
    }
  }

  Fd fd_;
  std::string path_;
};

}  // namespace

struct TokenWriter::Shard {
  std::string name;
  ShardFile bin, idx, mask;
};

std::uint64_t WriterState::tokens() const {
  std::uint64_t sum = open.tokens;
  for (const TokenShard& shard : finished) sum += shard.tokens;
  return sum;
}

std::uint64_t WriterState::documents() const {
  std::uint64_t sum = open.documents;
  for (const TokenShard& shard : finished) sum += shard.documents;
  return sum;
}

TokenWriter::TokenWriter(WriterOptions options, WriterState state)
    : options_(std::move(options)), state_(std::move(state)) {
  if (state_.open.tokens > 0) open_next();
}

TokenWriter::~TokenWriter() = default;

std::string TokenWriter::path(const std::string& name, const char* ending) const {
  return str(options_.folder, "/", name, ending);
}

void TokenWriter::open_next() {
  TokenShard& open = state_.open;
  open.name = shard_name(state_.finished.size());
  shard_ = std::make_shared<Shard>();
  shard_->name = open.name;
  shard_->bin.open(path(open.name, ".bin"),
                   open.tokens * static_cast<std::uint64_t>(options_.bytes_per_token),
                   open.bin_crc);
  shard_->idx.open(path(open.name, ".idx"), 8 * open.documents, open.idx_crc);
  if (options_.masked) {
    shard_->mask.open(path(open.name, ".mask"), open.tokens / 8, open.mask_crc);
  }
  const std::lock_guard lock(mutex_);
  unsynced_.push_back(shard_);
}

void TokenWriter::close_shard() {
  if (options_.masked && state_.open.tokens % 8 != 0) {
    shard_->mask.write(state_.open.tokens / 8, &state_.mask_rest, 1);
    state_.open.mask_crc = checkpoint::crc32c(&state_.mask_rest, 1, state_.open.mask_crc);
  }
  state_.mask_rest = 0;
  state_.finished.push_back(state_.open);
  state_.open = {};
  shard_.reset();
}

// In the order of the parts, because a byte may have bits of two of them.
void TokenWriter::write_mask(const TokenPart& part) {
  std::vector<std::uint8_t> bytes((state_.open.tokens % 8 + part.learnt.size()) / 8 + 1);
  bytes[0] = state_.mask_rest;
  std::uint64_t bit = state_.open.tokens % 8;
  for (const std::uint8_t learnt : part.learnt) {
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] | (learnt & 1u) << bit % 8);
    ++bit;
  }
  state_.mask_rest = bytes.back();  // the last byte is not full: it may be empty
  bytes.pop_back();
  shard_->mask.write(state_.open.tokens / 8, bytes.data(), bytes.size());
  state_.open.mask_crc = checkpoint::crc32c(bytes.data(), bytes.size(), state_.open.mask_crc);
}

TokenWriter::Place TokenWriter::claim(TokenPart& part) {
  const auto width = static_cast<std::uint64_t>(options_.bytes_per_token);
  TokenShard& open = state_.open;
  if (part.tokens.empty()) return {};
  if (open.tokens > 0 &&
      open.tokens * width + part.tokens.size() > static_cast<std::uint64_t>(options_.shard_bytes)) {
    close_shard();
  }
  if (open.tokens == 0) open_next();
  Place place{shard_, open.tokens, open.documents};
  for (std::uint64_t& end : part.ends) end += open.tokens;
  open.idx_crc = checkpoint::crc32c(part.ends.data(), 8 * part.ends.size(), open.idx_crc);
  open.bin_crc = checkpoint::crc32c_joined(open.bin_crc, part.crc, part.tokens.size());
  if (options_.masked) write_mask(part);
  open.tokens += part.tokens.size() / width;
  open.documents += part.ends.size();
  return place;
}

void TokenWriter::write(const Place& place, const TokenPart& part) const {
  if (!place.shard) return;
  place.shard->bin.write(place.token * static_cast<std::uint64_t>(options_.bytes_per_token),
                         part.tokens.data(), part.tokens.size());
  place.shard->idx.write(8 * place.document, part.ends.data(), 8 * part.ends.size());
}

void TokenWriter::sync(const WriterState& upto) {
  std::vector<std::shared_ptr<Shard>> shards;
  {
    const std::lock_guard lock(mutex_);
    shards = unsynced_;
  }
  const std::string last = shard_name(upto.finished.size());
  for (const std::shared_ptr<Shard>& shard : shards) {
    const bool whole = std::any_of(upto.finished.begin(), upto.finished.end(),
                                   [&](const TokenShard& one) { return one.name == shard->name; });
    if (!whole && shard->name != last) continue;
    shard->bin.sync();
    shard->idx.sync();
    if (options_.masked) shard->mask.sync();
    if (!whole) continue;
    const std::lock_guard lock(mutex_);
    std::erase(unsynced_, shard);
  }
}

std::vector<TokenShard> TokenWriter::finish() {
  if (state_.open.tokens > 0) close_shard();
  sync(state_);
  return state_.finished;
}

}  // namespace tessera::data
