#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// Activation checkpointing: the parts of a unit or a block that backward recomputes instead of
// reading them from memory.
enum class Recompute : std::uint8_t {
  none,
  selective,  // keeps matrix products, recomputes everything else
  full,       // keeps only the inputs
};
Recompute parse_recompute(std::string_view text);  // throws UsageError
// Returns the name used on the command line.
std::string_view name(Recompute mode);

}  // namespace tessera
