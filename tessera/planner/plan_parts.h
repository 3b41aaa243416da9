#pragma once

#include <vector>

#include "tessera/planner/layer_program.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/step.h"

// Parts of a plan that many plans have in common, computed once. Internal.
namespace tessera::planner {

// Durations of one micro-batch in each part of the model. They do not depend on the ZeRO stage or
// on the split and schedule of the pipeline, so compute them once to describe many steps.
struct PartTimes {
  StepChunk layer, embedding, head;
  StepChunk first;    // layer after the embedding
  StepChunk dense;    // layer without experts, in a model that has others
  Programs programs;  // operations behind these times
};
// Throws UsageError if only the model's size is known.
PartTimes part_times(const RunConfig& resolved);

// As describe_step(resolved), with precomputed parts.
Step describe_step(const RunConfig& resolved, const PartTimes& parts);

// As in plan.h, with precomputed programs_in_memory(), which do not depend on ZeRO or the pipeline.
std::vector<Memory> memory_by_rank(const RunConfig& resolved, const Programs& programs);
Memory memory_of(const RunConfig& resolved, const Programs& programs);
double needed_memory(const RunConfig& resolved, const Programs& programs);

// Operations and times of the parts of a model, which questions that differ only in memory,
// communication or the order of work have in common. Empty if only the model's size is known.
struct PlanParts {
  // Computes the parts of a resolved question.
  explicit PlanParts(const RunConfig& resolved);
  PartTimes times;
  Programs in_memory;  // programs_in_memory()
};

// As plan_numbers(resolved), with precomputed parts.
Plan plan_numbers(const RunConfig& resolved, const PlanParts& parts);

// Returns the changes of flags that gain something: Plan::advice.
std::vector<Advice> advice_for(const Plan& plan, const PlanParts& parts);

}  // namespace tessera::planner
