#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/engine_of_part.h"
#include "tessera/zero/plan.h"

namespace tessera::zero {

// Settings of a step on one rank, sent with its norm. The ranks compare them in every step, so that
// a setting that changes on one rank only is detected in that step. All are doubles: on a GPU they
// are sent as the bytes after a row of sums.
struct RankStep {
  double trains = 0;    // 1 if this part of the model has trained parameters; ignored if 0
  double has_work = 0;  // 1 if the rank ran a backward pass, or announced its tokens in begin()
  double lr = 0;
  double clip_norm = 0;
  double weight_decay = 0;
  double lr_scales = 0;   // number_of() a hash of the lr_scale of all parameters
  double written = 0;     // number_of() a hash of the parameters written to in place
  double of_experts = 0;  // number_of() a hash of both for experts, which other ranks do not have
  double differs = 0;     // 1 if ranks with the same parameters differ; informs the other parts
};
constexpr std::size_t kRankStepNumbers = sizeof(RankStep) / sizeof(double);

// Returns the low bits of a hash as a number that a double represents exactly.
double number_of(std::uint64_t hash);

// Throws UsageError if settings differ between ranks with the same parameters (`group`).
void check_ranks(const comm::Group& group, const std::vector<RankStep>& ranks);
// The same for ranks with different parts of the model, [Note: model axes].
void check_parts(const comm::Group& parts, const std::vector<RankStep>& ranks);
// Returns true if some rank has a gradient or announced its data, or does not train. Otherwise
// step() throws NoBackward.
bool any_has_work(const std::vector<RankStep>& ranks);
struct NoBackward : UsageError {
  NoBackward()
      : UsageError(
            "step(): no rank has called backward() since the last step, so there is no gradient. "
            "Call train.backward(loss) first") {}
};

// Sums over ranks that all ranks have before the update of a step.
struct StepSums {
  double squares = 0;           // sum of squares of the gradient
  double loss = 0;              // weighted sum over micro-batches
  std::vector<bool> used;       // by parameter: some rank has a gradient
  RankStep own;                 // of this rank
  std::vector<RankStep> ranks;  // of all ranks with the same parameters
  std::vector<RankStep> parts;  // of all parts of the model; empty if it is whole
};

// Returns the error message for a step that is not finite and must stop training.
std::string non_finite_text(std::int64_t step, const StepInfo& info);

// Collective. Sums over all data-parallel ranks, in one exchange, and one more over the ranks with
// the same experts, which alone use them.
StepSums sum_over_ranks(const Plan& plan, const DataGroups& groups, const StepSums& mine,
                        Stopwatch& waiting);
// Collective. Sums over the parts of the model, [Note: model axes].
void sum_over_model(const ModelAxes& axes, StepSums& sums, Stopwatch& waiting);
// Collective. Computes both sums. If settings differ between ranks, throws UsageError on those
// ranks and on the ranks with the other parts of their models, so that no rank continues alone.
StepSums sum_and_compare(const Plan& plan, const DataGroups& groups, const ModelAxes& axes,
                         const StepSums& mine, Stopwatch& waiting);

}  // namespace tessera::zero
