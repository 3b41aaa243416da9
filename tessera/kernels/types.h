#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tessera::kernels {

// What lies in memory. Everything is computed in fp32 (sums of squares in fp64).
enum class Type : std::uint8_t { f32, bf16 };

constexpr std::size_t size_of(Type type) { return type == Type::f32 ? 4 : 2; }

// bf16 is the upper half of an fp32, here as a plain uint16_t.
constexpr float from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

// To nearest, ties to even; a NaN stays one.
constexpr std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tessera::kernels
