#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/core/dtype.h"

namespace tessera::checkpoint {

using tessera::DType;  // safetensors has all of them

// Returns the size of an element in bytes, signed like all counts here.
constexpr std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
std::string stored_name(DType dtype);  // name in files: "BF16"

// Returns true if `from` can be converted to `to`: the same type, or both of f32, f16, bf16.
bool convertible(DType from, DType to);

enum class Rounding : std::uint8_t {
  exact,    // rejects values that the new type cannot represent
  nearest,  // ties to even
};

// Converts `count` elements. Source and target must not overlap. Returns `count`, or the index of
// the first element that cannot be converted exactly, at which it stops.
std::int64_t convert(DType from, const std::byte* source, DType to, std::byte* target,
                     std::int64_t count, Rounding rounding);

// Returns element `index` if the type fits into a double, otherwise NaN.
double value_at(DType dtype, const std::byte* data, std::int64_t index);

}  // namespace tessera::checkpoint
