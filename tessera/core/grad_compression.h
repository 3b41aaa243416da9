#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/core/enum_names.h"

namespace tessera {

// [Note: gradient compression] Encoding of gradients that are sent between replicas. bf16, fp16:
// fp32 gradients are rounded to 16 bits for sending and converted back to fp32 on arrival. The
// engine and the planner both use these rules.
enum class GradCompression : std::uint8_t { none, bf16, fp16 };
// Names on the command line.
template <>
struct EnumNames<GradCompression> {
  static constexpr std::array<std::string_view, 3> kNames{"none", "bf16", "fp16"};
};

// Returns the bytes sent for each gradient element that is stored in `kept` bytes.
constexpr int traveling_grad(int kept, GradCompression compression) {
  return compression != GradCompression::none && kept == 4 ? 2 : kept;
}

// Returns what replaces a compression of earlier versions if a flag, a key, a value or the name of
// a state in a checkpoint belongs to it; otherwise "".
constexpr std::string_view why_removed(std::string_view name) {
  if (name.find("powersgd") == std::string_view::npos) return "";
  return "PowerSGD has moved to examples/power_sgd.cpp, a hook for Options::reduce_hook";
}

}  // namespace tessera
