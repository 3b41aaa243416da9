#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera::comm {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

enum class ReduceOp : std::uint8_t { sum, avg, min, max };

constexpr std::size_t size_of(DType type) noexcept {
  switch (type) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

// "f32", "bf16", … and "sum", "avg", …: the spelling of the command line and of messages.
const char* name(DType type) noexcept;
const char* name(ReduceOp op) noexcept;

// Inverse of name(DType). Throws UsageError that lists what is accepted.
DType parse_dtype(std::string_view text);

// The type in which values of `type` are summed: f32 for bf16 and f16, else the type itself.
DType accumulator(DType type) noexcept;

}  // namespace tessera::comm
