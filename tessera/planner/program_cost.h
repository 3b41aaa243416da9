#pragma once

#include <cstdint>

#include "tessera/planner/layer_program.h"

// Sums over the operations of programs: [Note: layer programs].
namespace tessera::planner {

// Returns the bytes that a program keeps from forward for backward, of one micro-batch: in blocks
// of memory, as the ledger of a run counts them, or to the byte.
std::int64_t held_bytes(const Program& program, Recompute recompute);
double kept_bytes(const Program& program, Recompute recompute);
// Returns the same of all layers of an input, with the ends of the model that it has.
std::int64_t held_bytes(const ProgramInput& input);

}  // namespace tessera::planner
