#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::checkpoint {

// The element types of safetensors.
enum class DType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
};

std::int64_t size_of(DType dtype);                       // bytes of an element
std::string_view name(DType dtype);                      // as in a file: "BF16"
std::optional<DType> find_dtype(std::string_view text);  // case is ignored
DType parse_dtype(std::string_view text);                // throws UsageError

// Whether `from` can become `to` at all: the same type, or both of f32, f16, bf16.
bool convertible(DType from, DType to);

enum class Rounding : std::uint8_t {
  exact,    // a value that the new type does not have is refused
  nearest,  // ties to even
};

// Converts `count` elements; the two may not overlap. Returns the index of the first element that
// cannot be had exactly (and stops there), or `count`.
std::int64_t convert(DType from, const std::byte* source, DType to, std::byte* target,
                     std::int64_t count, Rounding rounding);

// The value of element `index`, for those types that are numbers a double holds; NaN for others.
double value_at(DType dtype, const std::byte* data, std::int64_t index);

}  // namespace tessera::checkpoint
