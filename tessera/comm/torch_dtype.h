#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "tessera/core/dtype.h"

namespace tessera::comm {

// Convert between torch's types and Tessera's. find_dtype() returns nullopt and to_scalar_type()
// returns Undefined if there is no corresponding type.
constexpr std::optional<DType> find_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::f16;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kByte: return DType::u8;
    case at::kFloat8_e4m3fn: return DType::f8_e4m3;
    case at::kFloat8_e5m2: return DType::f8_e5m2;
    case at::kShort: return DType::i16;
    case at::kChar: return DType::i8;
    case at::kUInt64: return DType::u64;
    case at::kUInt32: return DType::u32;
    case at::kUInt16: return DType::u16;
    case at::kBool: return DType::boolean;
    default: return std::nullopt;
  }
}

constexpr at::ScalarType to_scalar_type(DType type) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    if (find_dtype(static_cast<at::ScalarType>(i)) == type) return static_cast<at::ScalarType>(i);
  }
  return at::ScalarType::Undefined;
}

// Returns the type of a tensor that collectives carry. Throws UsageError for other types.
DType to_dtype(at::ScalarType type);

}  // namespace tessera::comm
