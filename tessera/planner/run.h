#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/run_config.h"
#include "tessera/planner/state.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

// Returns the elements that the ranks of the first and the last stage each send to sum the gradient
// of a tied embedding of `own` elements: their shard of the reduced gradient, rounded up to two
// equal parts.
std::int64_t tied_elements(std::int64_t own, int shards, int shard, bool sharded);

// Bytes that one rank holds.
struct RunMemory {
  std::int64_t params = 0;     // includes padding
  std::int64_t grads = 0;      // includes padding
  std::int64_t optimizer = 0;  // includes padding
  // Peak of activations kept for backward at the end of a forward pass, with the output to send.
  std::int64_t activations = 0;
  std::int64_t buffers = 0;  // buckets, gathered units, received gradients
  // Peak of temporaries: of the loss, of a layer's backward, or of whole matrices in the update.
  std::int64_t temporary = 0;
  // Part of the above that is not allocated at the peak: backward frees activations as it proceeds.
  std::int64_t not_at_once = 0;
  // Optimizer state in files. Not memory: `optimizer` does not count it, and `buffers` counts the
  // records that are in memory.
  std::int64_t on_disk = 0;

  std::int64_t state() const { return params + grads + optimizer; }
  std::int64_t total() const { return state() + activations + buffers + temporary - not_at_once; }
};
// Returns the memory of a rank of a Tessera run.
RunMemory run_memory(const RunConfig& run, const Coordinate& at = {});
// As above, with precomputed programs, which do not depend on the pipeline or on ZeRO. Their
// experts count, not those of `at`.
struct Programs;
RunMemory run_memory(const RunConfig& run, const Coordinate& at, const Programs& programs);
// Returns the memory of each pipeline rank.
std::vector<RunMemory> run_memory_by_rank(const RunConfig& run);
std::vector<RunMemory> run_memory_by_rank(const RunConfig& run, const Programs& programs);

// Bytes that one rank holds and sends.
struct RunPlan : RunMemory {
  // Sent per optimizer step, ring-equivalent, by axis. Sums of tied embeddings count as pp.
  PerAxis<std::int64_t> sent;

  std::int64_t sent_bytes() const { return sum(sent); }
};
RunPlan plan_run(const RunConfig& run, const Coordinate& at = {});

// Returns the schedule of the pipeline.
schedule::Schedule schedule_of(const RunConfig& run);
// Consecutive layers of each chunk on a pipeline rank; one chunk without a pipeline.
std::vector<ModelPart> parts_on_rank(const RunConfig& run, const Coordinate& at);
// Returns the parameters of a part of the model as a rank has them, and those with gradients.
std::vector<ParamSpec> model_params(const RunConfig& run, const ModelPart& part,
                                    const Coordinate& at);
std::vector<ParamSpec> trained_params(const RunConfig& run, const ModelPart& part,
                                      const Coordinate& at);
// Returns the layers of a part of the model.
StageLayers layers_of_part(const ModelShape& model, const ModelPart& part);
// Shape of a rank's tensor of a parameter. Sizes that an axis does not divide are rounded up.
std::vector<std::int64_t> shape_on_rank(const RunConfig& run, const ParamSpec& spec);
// Number of elements of that shape.
std::int64_t elements_on_rank(const RunConfig& run, const ParamSpec& spec);

// Returns the bytes that a rank sends to other replicas in a step: an all-reduce of its shard of
// each bucket, split into equal parts.
std::int64_t replica_traffic(const RunConfig& run, const Coordinate& at);

}  // namespace tessera::planner
