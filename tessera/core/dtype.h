#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tessera {

// Element type in memory, in messages and in files. Each module supports a subset.
enum class DType : std::uint8_t {
  f32,
  f64,
  bf16,
  f16,
  i32,
  i64,
  u8,
  f8_e4m3,
  f8_e5m2,
  i16,
  i8,
  u64,
  u32,
  u16,
  boolean,
};

inline constexpr std::array kDTypes = {DType::f32,     DType::f64, DType::bf16,   DType::f16,
                                       DType::i32,     DType::i64, DType::u8,     DType::f8_e4m3,
                                       DType::f8_e5m2, DType::i16, DType::i8,     DType::u64,
                                       DType::u32,     DType::u16, DType::boolean};

// Returns the size of an element in bytes.
constexpr std::size_t size_of(DType type) noexcept {
  switch (type) {
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
    case DType::u16: return 2;
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i8:
    case DType::u8:
    case DType::boolean: return 1;
  }
  return 0;
}

// Returns the name used on the command line and in messages: "f32", "bf16", …
const char* name(DType type) noexcept;

// Inverse of name(). Also accepts the names of PyTorch and of --layout for floats ("fp32",
// "float32", "bfloat16"). Ignores case.
std::optional<DType> find_dtype(std::string_view text);
// Returns the type with this name. Throws UsageError with the accepted names otherwise.
DType parse_dtype(std::string_view text, std::span<const DType> accepted = kDTypes);

}  // namespace tessera
