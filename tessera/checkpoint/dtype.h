#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/core/dtype.h"

namespace tessera::checkpoint {

using tessera::DType;  // all of which safetensors has

// Bytes of an element, signed as everything that is counted here.
constexpr std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
std::string stored_name(DType dtype);  // as in a file: "BF16"

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
