#pragma once

#include <array>
#include <cstdint>

#include "tessera/core/dtype.h"

namespace tessera::comm {

using tessera::DType;
using tessera::name;
using tessera::size_of;

// What collectives move.
inline constexpr std::array kMovedTypes = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                           DType::i32, DType::i64, DType::u8};

// How the values of the ranks become one.
enum class ReduceOp : std::uint8_t { sum, avg, min, max };
// "sum": for messages.
const char* name(ReduceOp op) noexcept;

// The type in which values of `type` are summed: f32 for bf16 and f16, else the type itself.
constexpr DType accumulator(DType type) noexcept {
  return type == DType::bf16 || type == DType::f16 ? DType::f32 : type;
}

}  // namespace tessera::comm
