#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/run.h"

// Costs of an optimizer that needs whole matrices (Muon): the matrices of the layers, the bytes
// that a rank sends to assemble them, and the memory during the update. [Note: matrices] in
// zero/matrix_exchange.h.
namespace tessera::planner {

bool needs_whole_matrices(const RunConfig& run);

struct HiddenMatrix {
  std::int64_t elements = 0;
  std::int64_t smaller_side = 0;
  bool of_expert = false;
};
// Returns the matrices on a rank, largest first, which is the order in which they are exchanged.
std::vector<HiddenMatrix> hidden_matrices(const RunConfig& run, const Coordinate& at = {});

// Returns the bytes that a rank sends in a step.
std::int64_t matrix_traffic(const RunConfig& run, const Coordinate& at = {});
// Returns the bytes of the buffers that a GPU keeps for the exchange; 0 on a CPU.
std::int64_t matrix_buffer_bytes(const RunConfig& run, const Coordinate& at = {});
// Returns the peak bytes of a rank while it updates the matrices, without those buffers.
std::int64_t matrix_update_bytes(const RunConfig& run, const Coordinate& at = {});

}  // namespace tessera::planner
