#include "tessera/data/input_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/fd.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

class PlainInput final : public InputStream {
 public:
  explicit PlainInput(const std::string& path)
      : path_(path), fd_(open_regular(path, "a text file, JSON lines or a folder of them")) {
    (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);  // only a hint
  }
  std::size_t read(char* into, std::size_t bytes) override {
    for (;;) {
      const ssize_t got = ::read(fd_.get(), into, bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        throw DataError(
            str("cannot read ", quote(path_), " at byte ", consumed_, ": ", std::strerror(errno)));
      }
      consumed_ += static_cast<std::uint64_t>(got);
      return static_cast<std::size_t>(got);
    }
  }
  std::uint64_t consumed() const override { return consumed_; }
  void seek(std::uint64_t to) {
    if (::lseek(fd_.get(), static_cast<off_t>(to), SEEK_SET) < 0) {
      throw DataError(
          str("cannot seek to byte ", to, " of ", quote(path_), ": ", std::strerror(errno)));
    }
    consumed_ = to;
  }

 private:
  std::string path_;
  Fd fd_;
  std::uint64_t consumed_ = 0;
};

// Compressed file and its decompressed stream.
class UnpackedInput final : public InputStream {
 public:
  UnpackedInput(std::unique_ptr<PlainInput> raw, Compression kind, const std::string& path)
      : raw_(std::move(raw)),
        unpacked_(decompress(
            kind, [this](char* into, std::size_t bytes) { return raw_->read(into, bytes); },
            path)) {}
  std::size_t read(char* into, std::size_t bytes) override { return unpacked_->read(into, bytes); }
  std::uint64_t consumed() const override { return raw_->consumed(); }

 private:
  std::unique_ptr<PlainInput> raw_;
  std::unique_ptr<InputStream> unpacked_;
};

}  // namespace

Compression compression_of(const char* begin, std::size_t bytes) {
  const auto is = [&](std::size_t i, unsigned value) {
    return static_cast<unsigned char>(begin[i]) == value;
  };
  if (bytes >= 3 && is(0, 0x1f) && is(1, 0x8b) && is(2, 8)) return Compression::gzip;
  if (bytes < 4) return Compression::none;
  const bool frame = is(0, 0x28) && is(1, 0xb5) && is(2, 0x2f) && is(3, 0xfd);
  const bool skippable = (static_cast<unsigned char>(begin[0]) & 0xf0u) == 0x50 && is(1, 0x2a) &&
                         is(2, 0x4d) && is(3, 0x18);
  return frame || skippable ? Compression::zstd : Compression::none;
}

std::unique_ptr<InputStream> open_input(const std::string& path, std::uint64_t skip) {
  auto plain = std::make_unique<PlainInput>(path);
  std::array<char, 4> first{};
  std::size_t got = 0;
  while (got < first.size()) {
    const std::size_t more = plain->read(first.data() + got, first.size() - got);
    if (more == 0) break;
    got += more;
  }
  const Compression kind = compression_of(first.data(), got);
  plain->seek(kind == Compression::none ? skip : 0);
  if (kind == Compression::none) return plain;
  auto unpacked = std::make_unique<UnpackedInput>(std::move(plain), kind, path);
  std::vector<char> discarded(std::min<std::uint64_t>(skip, 1 << 20));
  for (std::uint64_t done = 0; done < skip;) {
    const std::size_t more =
        unpacked->read(discarded.data(), std::min<std::uint64_t>(discarded.size(), skip - done));
    if (more == 0) {
      throw DataError(str(quote(path), " has ", done, " bytes, expected more than ", skip,
                          ": it was changed since prepare stopped. Start over with --restart."));
    }
    done += more;
  }
  return unpacked;
}

}  // namespace tessera::data
