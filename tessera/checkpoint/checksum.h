#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// CRC-32C (Castagnoli): finds every flipped bit and every burst of up to 32, and processors have an
// instruction for it. `crc` continues an earlier one: crc32c(b, crc32c(a)) is that of ab.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);
// The same by table; for processors without the instruction, and for tests.
std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t crc = 0);
// That of ab, from those of a and of b, which has so many bytes.
std::uint32_t crc32c_joined(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b);
inline std::uint32_t crc32c(std::string_view text) { return crc32c(text.data(), text.size()); }

// [Note: blocks] A tensor's checksums are one per block of this many bytes, counted from its
// beginning (the last is shorter), so that a rank that reads a part verifies what it reads.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
constexpr std::int64_t block_count(std::int64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes;
}

// The checksums of the blocks of `data`, one after the other: several at a time, because a
// processor waits for its instruction's result longer than it takes to begin the next.
void crc32c_blocks(const std::byte* data, std::int64_t bytes, std::vector<std::uint32_t>& out);

// Eight hexadecimal digits a checksum.
std::string to_hex(const std::vector<std::uint32_t>& checksums);
// False if `text` is no such text.
bool from_hex(std::string_view text, std::vector<std::uint32_t>& checksums);

}  // namespace tessera::checkpoint
