#include "tessera/comm/dtype.h"

#include <array>
#include <string>

#include "tessera/core/errors.h"

namespace tessera::comm {

namespace {
constexpr std::array kTypes = {DType::f32, DType::f64, DType::bf16, DType::f16,
                               DType::i32, DType::i64, DType::u8};
}

const char* name(DType type) noexcept {
  switch (type) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
  }
  return "unknown type";
}

const char* name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "unknown operation";
}

DType parse_dtype(std::string_view text) {
  for (const DType type : kTypes) {
    if (text == name(type)) return type;
  }
  std::string accepted;
  for (const DType type : kTypes) {
    if (!accepted.empty()) accepted += ", ";
    accepted += name(type);
  }
  throw UsageError("unknown element type '" + std::string(text) + "': give one of " + accepted);
}

DType accumulator(DType type) noexcept {
  return type == DType::bf16 || type == DType::f16 ? DType::f32 : type;
}

}  // namespace tessera::comm
