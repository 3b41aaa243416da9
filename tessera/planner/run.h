#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/state_layout.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/model_shape.h"
#include "tessera/planner/state.h"

namespace tessera::planner {

// [Note: padding] Each parameter alone is cut into one chunk per rank, of equal size and a multiple
// of 16 elements, so that shards do not depend on how parameters are packed. The planner counts
// what the engine allocates and sends, padding included.
inline constexpr std::int64_t kChunkElements = 16;
constexpr std::int64_t chunk_elements(std::int64_t numel, std::int64_t ranks) {
  const std::int64_t part = (numel + ranks - 1) / ranks;
  return (part + kChunkElements - 1) / kChunkElements * kChunkElements;
}

struct ParameterSize {
  std::string name;
  std::int64_t numel = 0;
};
// The parameters of Tessera's GPT in the order of declaration.
std::vector<ParameterSize> gpt_parameters(const ModelShape& shape);

// One data-parallel training run of Tessera's GPT.
struct RunQuestion {
  ModelShape model;
  StateLayout layout;
  int stage = 0;
  int dp = 1;
  std::int64_t micro_batch = 1;
  std::int64_t seq = 1;
  int accumulation = 1;
  ReducePolicy policy = ReducePolicy::last;
  bool keep_params = false;
  Recompute recompute = Recompute::none;
};

// What one rank holds and sends.
struct RunPlan {
  std::int64_t params = 0;       // bytes, padding included
  std::int64_t grads = 0;        // likewise
  std::int64_t optimizer = 0;    // likewise
  std::int64_t activations = 0;  // bytes at the end of a micro-batch's forward
  std::int64_t sent_bytes = 0;   // per optimizer step, ring-equivalent

  std::int64_t state() const { return params + grads + optimizer; }
};
RunPlan plan_run(const RunQuestion& question);

}  // namespace tessera::planner
