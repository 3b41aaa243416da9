#include "tessera/data/token_writer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/text.h"

namespace tessera::data {

// The buffers do not overlap; __restrict lets the compiler vectorize.
void widen_bytes(const char* __restrict from, std::size_t count, std::byte* __restrict to) {
  auto* const out = reinterpret_cast<unsigned char*>(to);
  for (std::size_t i = 0; i < count; ++i) {
    out[2 * i] = static_cast<unsigned char>(from[i]);
    out[2 * i + 1] = 0;
  }
}

void TokenPart::copy(std::uint64_t from, std::size_t count, std::byte* to,
                     std::uint64_t first) const {
  if (count == 0) return;
  if (text.empty()) {
    std::memcpy(to, tokens.data() + from, count);
    return;
  }
  widen_bytes(text.data() + from / 2, count / 2, to);
  const std::uint64_t begin = first + from / 2, behind = begin + count / 2;
  for (auto at = std::upper_bound(ends.begin(), ends.end(), begin);
       at != ends.end() && *at <= behind; ++at) {
    std::memcpy(to + 2 * (*at - 1 - begin), &end, sizeof end);
  }
}

std::uint32_t checksum_of(const TokenPart& part) {
  if (part.text.empty()) return checkpoint::crc32c(part.tokens.data(), part.tokens.size());
  std::array<std::byte, 32 << 10> block;  // fits in the L1 cache
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < part.bytes(); at += block.size()) {
    const std::size_t count = std::min<std::uint64_t>(block.size(), part.bytes() - at);
    part.copy(at, count, block.data());
    crc = checkpoint::crc32c(block.data(), count, crc);
  }
  return crc;
}

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
                   open.tokens * static_cast<std::uint64_t>(options_.bytes_per_token), open.bin_crc,
                   options_.direct_bytes > 0);
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
  if (shard_->bin.direct()) {
    shard_->bin.cut(state_.open.tokens * static_cast<std::uint64_t>(options_.bytes_per_token));
  }
  state_.finished.push_back(state_.open);
  state_.open = {};
  shard_.reset();
}

// Called in part order, because a byte may hold bits of two parts.
void TokenWriter::write_mask(const TokenPart& part) {
  std::vector<std::uint8_t> bytes((state_.open.tokens % 8 + part.learned.size()) / 8 + 1);
  bytes[0] = state_.mask_rest;
  std::uint64_t bit = state_.open.tokens % 8;
  for (const std::uint8_t learned : part.learned) {
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] | (learned & 1u) << bit % 8);
    ++bit;
  }
  state_.mask_rest = bytes.back();  // the last byte is incomplete, possibly empty
  bytes.pop_back();
  shard_->mask.write(state_.open.tokens / 8, bytes.data(), bytes.size());
  state_.open.mask_crc = checkpoint::crc32c(bytes.data(), bytes.size(), state_.open.mask_crc);
}

TokenWriter::Place TokenWriter::claim(TokenPart& part) {
  const auto width = static_cast<std::uint64_t>(options_.bytes_per_token);
  TokenShard& open = state_.open;
  const std::uint64_t bytes = part.bytes();
  if (bytes == 0) return {};
  if (open.tokens > 0 &&
      open.tokens * width + bytes > static_cast<std::uint64_t>(options_.shard_bytes)) {
    close_shard();
  }
  if (open.tokens == 0) open_next();
  Place place{shard_, open.tokens, open.documents};
  for (std::uint64_t& end : part.ends) end += open.tokens;
  open.idx_crc = checkpoint::crc32c(part.ends.data(), 8 * part.ends.size(), open.idx_crc);
  open.bin_crc = checkpoint::crc32c_joined(open.bin_crc, part.crc, bytes);
  if (options_.masked) write_mask(part);
  open.tokens += bytes / width;
  open.documents += part.ends.size();
  shard_->bin.reserve(open.tokens * width);
  return place;
}

void TokenWriter::write(const Place& place, const TokenPart& part,
                        const WriteBuffer& buffer) const {
  if (!place.shard) return;
  const ShardFile& bin = place.shard->bin;
  const std::uint64_t begin = place.token * static_cast<std::uint64_t>(options_.bytes_per_token);
  const std::uint64_t bytes = part.bytes();
  const bool large = bin.direct() && bytes >= options_.direct_bytes;
  place.shard->idx.write(8 * place.document, part.ends.data(), 8 * part.ends.size());
  if (!large && part.text.empty()) {
    bin.write(begin, part.tokens.data(), bytes);
    return;
  }
  const std::uint64_t block = direct_block();
  for (std::uint64_t at = 0; at < bytes;) {
    std::uint64_t count = std::min<std::uint64_t>(bytes - at, buffer.size());
    const std::uint64_t inside = (begin + at) % block;  // offset within a block
    const bool whole = large && inside == 0 && count >= block;
    if (whole) count -= count % block;
    if (large && inside > 0) count = std::min(count, block - inside);
    part.copy(at, count, buffer.data(), place.token);
    if (whole) {
      bin.write_direct(begin + at, buffer.data(), count);
    } else {
      bin.write(begin + at, buffer.data(), count, !large);
    }
    at += count;
  }
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
