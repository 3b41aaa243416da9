#include "tessera/core/dtype.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {

const char* name(DType type) noexcept {
  switch (type) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::f8_e4m3: return "f8_e4m3";
    case DType::f8_e5m2: return "f8_e5m2";
    case DType::i16: return "i16";
    case DType::i8: return "i8";
    case DType::u64: return "u64";
    case DType::u32: return "u32";
    case DType::u16: return "u16";
    case DType::boolean: return "bool";
  }
  return "unknown type";
}

std::optional<DType> find_dtype(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (const DType type : kDTypes) {
    if (lower == name(type)) return type;
  }
  for (const auto& [other, type] : {std::pair("fp64", DType::f64), std::pair("float64", DType::f64),
                                    std::pair("fp32", DType::f32), std::pair("float32", DType::f32),
                                    std::pair("fp16", DType::f16), std::pair("float16", DType::f16),
                                    std::pair("bfloat16", DType::bf16)}) {
    if (lower == other) return type;
  }
  return std::nullopt;
}

DType parse_dtype(std::string_view text, std::span<const DType> accepted) {
  const std::optional<DType> found = find_dtype(text);
  if (found && std::find(accepted.begin(), accepted.end(), *found) != accepted.end()) return *found;
  std::vector<std::string> names;
  for (const DType type : accepted) names.emplace_back(name(type));
  throw UsageError(str("got the type ", quote(text), "; must be one of ", join(names, ", "),
                       did_you_mean(text, names)));
}

}  // namespace tessera
