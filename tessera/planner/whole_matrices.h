#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/run.h"

// Of an optimizer that needs whole matrices (Muon): those of the layers, what a rank sends to bring
// them together, and what it holds meanwhile. [Note: matrices] in zero/matrix_exchange.h.
namespace tessera::planner {

bool needs_whole_matrices(const RunQuestion& question);

struct HiddenMatrix {
  std::int64_t elements = 0;
  std::int64_t smaller_side = 0;
};
// On this rank, the largest first: in this order they travel.
std::vector<HiddenMatrix> hidden_matrices(const RunQuestion& question);

// Bytes that a rank sends in a step.
std::int64_t matrix_traffic(const RunQuestion& question);
// Bytes that it holds at most while it updates the matrices.
std::int64_t matrix_update_bytes(const RunQuestion& question);

}  // namespace tessera::planner
