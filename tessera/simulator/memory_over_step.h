#pragma once

#include <cstddef>
#include <vector>

#include "tessera/planner/pass_memory.h"
#include "tessera/planner/plan.h"
#include "tessera/schedule/schedule.h"
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

// [Note: memory over a step] The passes of a rank in the order of its schedule, with the memory of
// each ([Note: memory of a pass]), so the highest moment is the plan's peak. The output of a pass
// is sent when the pass ends. A backward pass that is split into two holds the activations of its
// layers for the weight gradients, as temporaries, which the second part frees evenly; the
// temporaries of its first part are limited to the plan's.

// A pass of a rank, in seconds since the beginning of the step.
struct MemoryPass {
  schedule::Kind kind = schedule::Kind::forward;  // of computation
  int chunk = 0;
  double begin = 0, end = 0;
};
// Most moments of a step. Longer ones are divided into equal intervals that keep their first, their
// highest and their last moment, and the one with most activations.
inline constexpr std::size_t kMostMoments = 4096;

// Returns the memory of a rank whose step has these passes. `reserve`: bytes of temporaries that
// are allocated throughout, in addition to those of `each`.
MemoryOverStep memory_over_passes(const planner::Memory& whole, const planner::PassMemory& each,
                                  double reserve, const std::vector<MemoryPass>& passes,
                                  double step);

// Returns the memory of a pipeline rank, from a simulated step. Throws UsageError if only the size
// of the model is known.
MemoryOverStep memory_over_step(const planner::RunConfig& resolved, int rank);

}  // namespace tessera::simulator
