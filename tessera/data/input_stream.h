#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tessera::data {

// Bytes that come one after the other.
class InputStream {
 public:
  virtual ~InputStream() = default;
  // At most `bytes` of them; 0 at the end alone. Throws DataError for a file that is damaged.
  virtual std::size_t read(char* into, std::size_t bytes) = 0;
  // Bytes taken from the disk so far.
  virtual std::uint64_t consumed() const = 0;
};

// How compressed bytes come: as InputStream::read.
using RawRead = std::function<std::size_t(char*, std::size_t)>;

enum class Compression : std::uint8_t { none, gzip, zstd };
// By the bytes that a file begins with.
Compression compression_of(const char* begin, std::size_t bytes);
// What is in a compressed stream, all its members or frames one after the other. `path` names it in
// errors. Throws DataError where the build cannot.
std::unique_ptr<InputStream> decompress(Compression kind, RawRead raw, const std::string& path);

// A file's bytes from `skip` on, of what is in it where it is compressed: its first bytes tell, not
// its name. Throws UsageError for what is no regular file.
std::unique_ptr<InputStream> open_input(const std::string& path, std::uint64_t skip = 0);

}  // namespace tessera::data
