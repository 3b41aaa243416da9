#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

using Digest = std::array<std::uint8_t, 32>;

// Incremental SHA-256 (FIPS 180-4).
class Sha256 {
 public:
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  // Returns the digest of everything added. Nothing may be added afterwards.
  Digest finish();

 private:
  void block(const std::uint8_t* bytes);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> rest_{};  // starts with the bytes of an incomplete block
  std::uint64_t total_ = 0;
};

Digest sha256(std::string_view text);

// HMAC-SHA256 (RFC 2104).
Digest hmac_sha256(std::string_view key, std::string_view text);

// Compares in constant time, so that timing does not reveal the position of the first difference.
bool equal_in_constant_time(const Digest& a, const Digest& b);

std::string to_hex(const Digest& digest);

}  // namespace tessera
