#pragma once

#include <string_view>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// Memory of a pipeline rank in the course of a step. State and buffers are allocated throughout.
struct MemoryOverStep {
  int rank = 0;           // of the pipeline
  planner::Memory whole;  // as in the plan: each category at its maximum
  struct Moment {
    double seconds = 0;
    double activations = 0, temporary = 0;  // bytes
  };
  std::vector<Moment> moments;  // in order of time; two at one time are a jump
  double step = 0;              // seconds
  // Returns the bytes at a moment.
  double total(const Moment& moment) const {
    return whole.params + whole.grads + whole.optimizer + whole.buffers + moment.activations +
           moment.temporary;
  }
};

// [Note: memory over a step] A forward pass adds the activations of its micro-batch and chunk
// evenly over its duration, and the pass that computes weight gradients frees them evenly. All
// micro-batches and chunks of a rank hold equally much, so that the maximum is that of the plan. A
// backward pass begins with the temporaries that fit below the plan's peak; they grow to the plan's
// maximum as activations are freed. The peak is therefore that of the plan. Only the runtime's
// reserve is allocated between backward passes.

// A pass of a rank, in seconds since the beginning of the step.
struct MemoryPass {
  int change = 0;  // +1: keeps activations, -1: frees them, 0: neither (gradients of inputs only)
  double begin = 0, end = 0;
};
// Returns +1 for "forward", -1 for "backward" and "backward_weight", otherwise 0.
int change_of_pass(std::string_view what);
// Returns the memory of a rank whose step has these passes. `reserve`: bytes of temporaries that
// are allocated throughout.
MemoryOverStep memory_over_passes(const planner::Memory& whole, double reserve,
                                  const std::vector<MemoryPass>& passes, double step);

// Returns the memory of a pipeline rank, from a simulated step. Throws UsageError if only the size
// of the model is known.
MemoryOverStep memory_over_step(const planner::RunConfig& resolved, int rank);

}  // namespace tessera::simulator
