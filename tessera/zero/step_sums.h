#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/zero/buffers.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/options.h"

namespace tessera::zero {

// What all ranks know of a step before the update: sums over what each of them has.
struct StepSums {
  double squares = 0;      // of the gradient
  double loss = 0;         // scaled by what each micro-batch counts
  std::vector<bool> used;  // by parameter: some rank has a gradient
};

// Text of the error for a step that is not finite and must stop training.
std::string non_finite_text(std::int64_t step, const StepInfo& info);

// Collective: over the ranks of the engine's group, in one exchange.
StepSums sum_over_ranks(const comm::Group& group, const StepSums& mine, Stopwatch& waiting);
// Collective: over the parts of the model too, [Note: model axes].
void sum_over_model(const ModelAxes& axes, StepSums& sums, Stopwatch& waiting);

}  // namespace tessera::zero
