// Conversions between float and bf16 or f16, which are stored as 16 bits.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

// bf16 is the upper half of an fp32.
constexpr float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// Rounds to nearest, ties to even. A NaN becomes a quiet NaN with the upper half of its payload.
constexpr std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude < 0x0400) {  // zero or subnormal: magnitude * 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  const std::uint32_t exponent = magnitude < 0x7c00 ? 112u << 23 : 224u << 23;  // or inf, NaN
  return std::bit_cast<float>(sign | ((magnitude << 13) + exponent));
}

constexpr std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // would round to 2^16 or more
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14
    // The last bit of 0.5 is worth 2^-24: the sum is rounded to a multiple of that.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace tessera
