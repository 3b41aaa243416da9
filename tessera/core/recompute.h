#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// What a segment of a model (a unit, a block) recomputes in backward instead of keeping it from
// forward: activation checkpointing.
enum class Recompute : std::uint8_t {
  none,
  selective,  // matrix products are kept, everything between them is recomputed
  full,       // only the inputs are kept
};
Recompute parse_recompute(std::string_view text);  // throws UsageError
// As the command line spells it.
std::string_view name(Recompute mode);

}  // namespace tessera
