#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tessera {

// Two hashes that ranks compare and print. Neither is cryptographic.

// Adds one word to a hash. Fast enough for gigabytes of parameters.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t word) noexcept {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

// Adds bytes to a hash, eight at a time, and the number of remaining bytes.
inline std::uint64_t mix(std::uint64_t hash, const void* data, std::size_t count) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::size_t at = 0;
  for (; at + 8 <= count; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, 8);
    hash = mix(hash, word);
  }
  std::uint64_t rest = count - at;
  for (; at < count; ++at) rest = rest << 8 | bytes[at];
  return mix(hash, rest);
}

// FNV-1a, for names and labels.
inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ull;
constexpr std::uint64_t hash_text(std::string_view text, std::uint64_t from = kHashStart) noexcept {
  for (const char c : text) from = (from ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return from;
}

}  // namespace tessera
