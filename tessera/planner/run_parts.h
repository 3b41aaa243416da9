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

// A moment of a step: what there is beside state, activations and buffers, and what of the
// activations has gone by then.
struct Moment {
  std::int64_t temporary = 0, gone = 0;
};
// Bytes that a micro-batch keeps of a part of the model, with so much recomputed.
std::int64_t kept_bytes(const RunQuestion& question, const ModelPart& part, Recompute recompute);
// Bytes of the output that a part sends on: of one with the head, none.
std::int64_t sent_on(const RunQuestion& question, const ModelPart& part);
// Of a part of a run with light activations: [Note: temporaries on a GPU].
std::vector<Moment> light_moments(const RunQuestion& question, const ModelPart& part);

}  // namespace tessera::planner
