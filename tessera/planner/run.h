#pragma once

#include <cstdint>
#include <string>

#include "tessera/core/axes.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/question.h"
#include "tessera/planner/state.h"

namespace tessera::planner {

// Elements that a rank of the first and one of the last stage send to add up their gradients of a
// tied embedding, of which each has `own` elements: what the ZeRO stage leaves a replica of the
// reduced gradient, in two equal shards.
std::int64_t tied_elements(std::int64_t own, int shards, int shard, bool sharded);

// One training run of Tessera's models, as the rank at one place of the mesh has it.
struct RunQuestion {
  ModelShape model;
  StateLayout layout;
  int stage = 0;
  std::int64_t micro_batch = 1;
  std::int64_t seq = 1;
  int accumulation = 1;
  ReducePolicy policy = ReducePolicy::last;
  GradCompression compression = GradCompression::none;
  PowerSgd power_sgd;
  bool keep_params = false;
  Recompute recompute = Recompute::none;

  Axes axes;
  Coordinate place;
  bool sequence_parallel = false;
  std::string schedule = "1f1b";
  int chunks = 1;
  std::string split = "even";  // see layers_of_stages

  double bucket_bytes = 0;  // 0: by the model, [Note: bucket size]
  Gather gather = Gather::copy;
  bool prefetch = true;
  bool gpu = false;
  bool light_activations = false;  // [Note: fused operations]

  // Bytes of an element of the gradient on its way.
  int travel() const { return dp() > 1 ? traveling_grad(layout.grad, compression) : layout.grad; }
  bool low_rank() const { return dp() > 1 && compression == GradCompression::powersgd; }

  int dp() const { return axes.dp(); }
  // Ranks that shard state, and the number of groups of them: [Note: replicas] in core/axes.h.
  int shards() const { return axes.size(Axis::dp_shard); }
  int replicas() const { return axes.size(Axis::dp_replicate); }
  int tp() const { return axes.tp(); }
  int pp() const { return axes.pp(); }
};
// The run that a settled question describes.
RunQuestion run_question(const Question& settled, const Coordinate& place = {});

// Bytes that one rank holds.
struct RunMemory {
  std::int64_t params = 0;     // padding included
  std::int64_t grads = 0;      // likewise
  std::int64_t optimizer = 0;  // likewise
  // Kept at the end of a forward, the most that a pipeline has in flight, and what it sends on.
  std::int64_t activations = 0;
  std::int64_t buffers = 0;  // buckets, gathered units, received gradients
  // The most beside them: of the loss, of a layer's backward, or of whole matrices in the update.
  std::int64_t temporary = 0;
  // Of these rows, what is not there at the peak: activations go while backward goes on.
  std::int64_t not_at_once = 0;

  std::int64_t state() const { return params + grads + optimizer; }
  std::int64_t total() const { return state() + activations + buffers + temporary - not_at_once; }
};
RunMemory run_memory(const RunQuestion& question);
// The same with the programs of its layers, which do not depend on its pipeline or on ZeRO.
struct Programs;
RunMemory run_memory(const RunQuestion& question, const Programs& programs);

// What one rank holds and sends.
struct RunPlan : RunMemory {
  // Sent per optimizer step, ring-equivalent, by axis; ties between stages count for pp.
  PerAxis<std::int64_t> sent;

  std::int64_t sent_bytes() const { return sum(sent); }
};
RunPlan plan_run(const RunQuestion& question);

}  // namespace tessera::planner
