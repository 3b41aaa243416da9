#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/parameters.h"
#include "tessera/planner/run.h"

namespace tessera::planner {

// The gradient of parts of a model on one rank, in elements, as PowerSGD has it: [Note: gradient
// compression]. What travels is also what its buffers hold; padding is included.
struct LowRank {
  std::int64_t traveling = 0;
  std::int64_t errors = 0;  // what was left out, which a rank keeps
};
LowRank low_rank_of(const RunQuestion& question, const std::vector<ModelPart>& parts);

// Bytes of the gradients of these chunks of a rank as they travel; `params`: how many of them
// are trained.
double traveling_grad_bytes(const Question& settled, double params,
                            const std::vector<StageShare>& chunks);
// Of the rank that sends most.
double most_grad_bytes(const Question& settled);

}  // namespace tessera::planner
