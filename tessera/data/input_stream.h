#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tessera::data {

// Sequential stream of bytes.
class InputStream {
 public:
  virtual ~InputStream() = default;
  // Reads at most `bytes` bytes and returns their number; 0 only at the end. Throws DataError if
  // the file is damaged.
  virtual std::size_t read(char* into, std::size_t bytes) = 0;
  // Bytes read from disk so far.
  virtual std::uint64_t consumed() const = 0;
};

// Source of compressed bytes, with the contract of InputStream::read.
using RawRead = std::function<std::size_t(char*, std::size_t)>;

enum class Compression : std::uint8_t { none, gzip, zstd };
// Detects the compression from the first bytes of a file.
Compression compression_of(const char* begin, std::size_t bytes);
// Returns the decompressed stream, all members or frames concatenated. `path` names it in errors.
// Throws DataError if the build does not support the format.
std::unique_ptr<InputStream> decompress(Compression kind, RawRead raw, const std::string& path);

// Opens a file at byte `skip` of its decompressed contents. Compression is detected from the first
// bytes, not the name. Throws UsageError if it is not a regular file.
std::unique_ptr<InputStream> open_input(const std::string& path, std::uint64_t skip = 0);

}  // namespace tessera::data
