#include <algorithm>
#include <cstring>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/input_stream.h"

#if defined(TESSERA_HAVE_ZLIB)
#include <zlib.h>
#endif
#if defined(TESSERA_HAVE_ZSTD)
#include <zstd.h>
#endif

namespace tessera::data {
namespace {

constexpr std::size_t kPackedBytes = std::size_t{256} << 10;

[[noreturn, maybe_unused]] void refuse_packed(const std::string& path, std::uint64_t at,
                                              const std::string& why) {
  throw DataError(
      str(quote(path), " is damaged at byte ", at, ": ", why, ". Use another copy of the file."));
}

// Base of both decompressors: reads the compressed bytes in blocks.
class [[maybe_unused]] PackedInput : public InputStream {
 public:
  PackedInput(RawRead raw, std::string path)
      : path_(std::move(path)), raw_(std::move(raw)), packed_(kPackedBytes) {}
  std::uint64_t consumed() const override { return taken_ - left(); }

 protected:
  std::size_t left() const { return end_ - begin_; }
  // Reads more if none are left. Returns false at the end.
  bool fill() {
    if (left() > 0) return true;
    begin_ = 0;
    end_ = raw_(packed_.data(), packed_.size());
    taken_ += end_;
    return end_ > 0;
  }
  char* at() { return packed_.data() + begin_; }
  void use(std::size_t bytes) { begin_ += bytes; }

  std::string path_;

 private:
  RawRead raw_;
  std::vector<char> packed_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t taken_ = 0;
};

#if defined(TESSERA_HAVE_ZLIB)
class GzipInput final : public PackedInput {
 public:
  GzipInput(RawRead raw, const std::string& path) : PackedInput(std::move(raw), path) {
    if (::inflateInit2(&stream_, 15 + 16) != Z_OK) throw Error("zlib: out of memory");
  }
  ~GzipInput() override { ::inflateEnd(&stream_); }
  GzipInput(const GzipInput&) = delete;
  GzipInput& operator=(const GzipInput&) = delete;

  std::size_t read(char* into, std::size_t bytes) override {
    bytes = std::min<std::size_t>(bytes, std::size_t{1} << 30);
    while (!done_) {
      if (!fill()) {
        if (between_) break;
        refuse_packed(path_, consumed(), "it ends in the middle of a gzip member");
      }
      if (between_ && !begin_member()) break;
      stream_.next_in = reinterpret_cast<Bytef*>(at());
      stream_.avail_in = static_cast<uInt>(left());
      stream_.next_out = reinterpret_cast<Bytef*>(into);
      stream_.avail_out = static_cast<uInt>(bytes);
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      use(left() - stream_.avail_in);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
        refuse_packed(path_, consumed(),
                      stream_.msg != nullptr ? stream_.msg : "not a gzip stream");
      }
      between_ = status == Z_STREAM_END;
      if (const std::size_t got = bytes - stream_.avail_out; got > 0) return got;
    }
    done_ = true;
    return 0;
  }

 private:
  // After a member follows another one, or only zeros, which some programs use as padding.
  bool begin_member() {
    if (!first_ && *at() == 0) {
      do {
        const char* const end = at() + left();
        const char* const other = std::find_if(at(), at() + left(), [](char c) { return c != 0; });
        use(static_cast<std::size_t>(other - at()));
        if (other != end) refuse_packed(path_, consumed(), "bytes after the last gzip member");
      } while (fill());
      return false;
    }
    first_ = false;
    between_ = false;
    ::inflateReset(&stream_);
    return true;
  }

  z_stream stream_{};
  bool between_ = true, first_ = true, done_ = false;
};
#endif

#if defined(TESSERA_HAVE_ZSTD)
class ZstdInput final : public PackedInput {
 public:
  ZstdInput(RawRead raw, const std::string& path)
      : PackedInput(std::move(raw), path), stream_(::ZSTD_createDStream()) {
    if (stream_ == nullptr) throw Error("zstd: out of memory");
  }
  ~ZstdInput() override { ::ZSTD_freeDStream(stream_); }
  ZstdInput(const ZstdInput&) = delete;
  ZstdInput& operator=(const ZstdInput&) = delete;

  std::size_t read(char* into, std::size_t bytes) override {
    while (!done_) {
      // The decoder may still hold decompressed bytes, so the input may be empty.
      const bool more = fill();
      ZSTD_inBuffer in{at(), left(), 0};
      ZSTD_outBuffer out{into, bytes, 0};
      if (!more && between_) break;
      const std::size_t status = ::ZSTD_decompressStream(stream_, &out, &in);
      use(in.pos);
      if (::ZSTD_isError(status) != 0) {
        refuse_packed(path_, consumed(), ::ZSTD_getErrorName(status));
      }
      between_ = status == 0;
      if (out.pos > 0) return out.pos;
      if (!more && !between_) {
        refuse_packed(path_, consumed(), "it ends in the middle of a zstd frame");
      }
    }
    done_ = true;
    return 0;
  }

 private:
  ZSTD_DStream* stream_;
  bool between_ = true, done_ = false;
};
#endif

}  // namespace

std::unique_ptr<InputStream> decompress(Compression kind, [[maybe_unused]] RawRead raw,
                                        const std::string& path) {
#if defined(TESSERA_HAVE_ZLIB)
  if (kind == Compression::gzip) return std::make_unique<GzipInput>(std::move(raw), path);
#endif
#if defined(TESSERA_HAVE_ZSTD)
  if (kind == Compression::zstd) return std::make_unique<ZstdInput>(std::move(raw), path);
#endif
  const bool gzip = kind == Compression::gzip;
  throw DataError(str(quote(path), " is compressed with ", gzip ? "gzip" : "zstd",
                      ", and this build has no ", gzip ? "zlib" : "libzstd",
                      ". Decompress it first, or install ", gzip ? "zlib1g-dev" : "libzstd-dev",
                      " and rebuild."));
}

}  // namespace tessera::data
