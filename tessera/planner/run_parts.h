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
// Shape of a rank's tensor of a parameter. Sizes that an axis does not divide are rounded up.
std::vector<std::int64_t> shape_on_rank(const RunQuestion& question, const ParamSpec& spec);
// Number of elements of that shape.
std::int64_t elements_on_rank(const RunQuestion& question, const ParamSpec& spec);

// Bytes that a rank sends to replicas in a step: an all-reduce of its shard of each bucket, cut
// into equal parts.
std::int64_t replica_traffic(const RunQuestion& q);

}  // namespace tessera::planner
