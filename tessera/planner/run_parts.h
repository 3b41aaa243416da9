#pragma once

#include <vector>

#include "tessera/planner/parameters.h"
#include "tessera/planner/run.h"
#include "tessera/schedule/schedule.h"

// Parts of the model on one rank of a run.
namespace tessera::planner {

// Returns the schedule of the pipeline.
schedule::Schedule schedule_of(const RunConfig& run);
// Consecutive layers of each chunk on a pipeline rank; one chunk without a pipeline.
std::vector<ModelPart> parts_on_rank(const RunConfig& run, const Coordinate& at);
// Shape of a rank's tensor of a parameter. Sizes that an axis does not divide are rounded up.
std::vector<std::int64_t> shape_on_rank(const RunConfig& run, const ParamSpec& spec);
// Number of elements of that shape.
std::int64_t elements_on_rank(const RunConfig& run, const ParamSpec& spec);

// Returns the bytes that a rank sends to other replicas in a step: an all-reduce of its shard of
// each bucket, split into equal parts.
std::int64_t replica_traffic(const RunConfig& run, const Coordinate& at);

}  // namespace tessera::planner
