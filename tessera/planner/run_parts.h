#pragma once

#include <vector>

#include "tessera/planner/parameters.h"
#include "tessera/planner/run.h"

// What of the model a rank of a run has.
namespace tessera::planner {

// The pipeline of a run, as rank_load.h and stage_of() ask about it.
Question pipeline_question(const RunQuestion& question);
// Chunk by chunk; one without a pipeline.
std::vector<ModelPart> parts_on_rank(const RunQuestion& question);
// Of a parameter, after tp has cut it; what does not divide is counted as padded until it does.
std::int64_t elements_on_rank(const RunQuestion& question, const ParamSpec& spec);
// Elements of each matrix in the layers, the largest first.
std::vector<std::int64_t> hidden_matrices(const RunQuestion& question);

}  // namespace tessera::planner
