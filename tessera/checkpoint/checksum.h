#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// Returns the CRC-32C (Castagnoli) of bytes. It detects every single flipped bit and every burst of
// up to 32 bits, and processors have an instruction for it. `crc` continues an earlier checksum:
// crc32c(b, crc32c(a)) is the checksum of ab.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);
// Table-based version, for processors without the instruction and for tests.
std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t crc = 0);
// Returns the checksum of ab from those of a and b.
std::uint32_t crc32c_joined(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b);
inline std::uint32_t crc32c(std::string_view text) { return crc32c(text.data(), text.size()); }

// [Note: blocks] A tensor has one checksum per block of this many bytes, counted from its beginning
// (the last block may be shorter). So a rank that reads part of a tensor can verify that part.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
constexpr std::int64_t block_count(std::int64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes;
}

// Appends the checksums of the blocks of `data` to `out`. Computes several at a time, because a
// single chain of instructions is bound by their latency.
void crc32c_blocks(const std::byte* data, std::int64_t bytes, std::vector<std::uint32_t>& out);

// Returns eight hexadecimal digits per checksum.
std::string to_hex(const std::vector<std::uint32_t>& checksums);
// Inverse of to_hex(). Returns false if `text` is invalid.
bool from_hex(std::string_view text, std::vector<std::uint32_t>& checksums);

}  // namespace tessera::checkpoint
