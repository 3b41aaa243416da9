#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/data_groups.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/model_axes.h"

namespace tessera::zero {

// [Note: numbers of a rank] Numbers of a step that a rank sends along with its norm. The ranks
// compare them in every step, so that a setting that one rank alone changes is found in the step in
// which it changes. All are doubles: on a GPU they travel as the bytes behind a row of sums.
struct RankStep {
  double trains = 0;    // 1 if this part of the model has trained parameters; others are ignored
  double has_work = 0;  // 1 if the rank ran a backward pass, or announced its tokens in begin()
  double lr = 0;
  double clip_norm = 0;
  double weight_decay = 0;
  double lr_scales = 0;  // number_of() a hash over the parameters
  double written = 0;    // the same of the parameters that the program wrote to in place
  double differs = 0;    // 1 if ranks with the same parameters differ; for the other parts
};
constexpr std::size_t kRankStepNumbers = sizeof(RankStep) / sizeof(double);

// A hash as a number that a double holds exactly.
double number_of(std::uint64_t hash);

// Throws UsageError if ranks that must step alike do not. `group`: ranks with the same parameters.
void check_ranks(const comm::Group& group, const std::vector<RankStep>& ranks);
// The same for ranks with other parts of the model, [Note: model axes].
void check_parts(const comm::Group& parts, const std::vector<RankStep>& ranks);
// Returns whether some rank has something to update with, or none trains. Otherwise step()
// throws NoBackward.
bool any_has_work(const std::vector<RankStep>& ranks);
struct NoBackward : UsageError {
  NoBackward()
      : UsageError(
            "step(): no rank has called backward() since the last step, and there is no gradient "
            "to update with. Call train.backward(loss) first") {}
};

// What all ranks know of a step before the update: sums over what each of them has.
struct StepSums {
  double squares = 0;           // of the gradient
  double loss = 0;              // scaled by what each micro-batch counts
  std::vector<bool> used;       // by parameter: some rank has a gradient
  RankStep own;                 // of this rank
  std::vector<RankStep> ranks;  // of all ranks with the same parameters
  std::vector<RankStep> parts;  // of all parts of the model; empty if it is whole
};

// Text of the error for a step that is not finite and must stop training.
std::string non_finite_text(std::int64_t step, const StepInfo& info);

// Collective: over all data-parallel ranks, in one exchange.
StepSums sum_over_ranks(const DataGroups& groups, const StepSums& mine, Stopwatch& waiting);
// Collective: over the parts of the model too, [Note: model axes].
void sum_over_model(const ModelAxes& axes, StepSums& sums, Stopwatch& waiting);
// Collective: both sums. Throws UsageError on every rank of the mesh that has to do with ranks that
// must step alike and do not, so that none goes on alone.
StepSums sum_and_compare(const DataGroups& groups, const ModelAxes& axes, const StepSums& mine,
                         Stopwatch& waiting);

}  // namespace tessera::zero
