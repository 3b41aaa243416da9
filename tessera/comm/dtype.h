#pragma once

#include <array>
#include <cstdint>

#include "tessera/core/dtype.h"

namespace tessera::comm {

using tessera::DType;
using tessera::name;
using tessera::size_of;

// Types that collectives support.
inline constexpr std::array kMovedTypes = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                           DType::i32, DType::i64, DType::u8};

// Returns the type in which values of `type` are summed: f32 for bf16 and f16, otherwise `type`.
constexpr DType accumulator(DType type) noexcept {
  return type == DType::bf16 || type == DType::f16 ? DType::f32 : type;
}

}  // namespace tessera::comm
