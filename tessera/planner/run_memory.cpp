// Memory of a rank of a Tessera run.

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/core/state_layout.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/pass_memory.h"
#include "tessera/planner/placed_params.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/whole_matrices.h"

namespace tessera::planner {
namespace {

struct Bucket {
  std::int64_t elements = 0;
  int shards = 1;
};
// Returns the buckets. Gradients arrive in reverse order; a bucket is closed once it is large
// enough. Parameters of experts have buckets of their own, because other ranks reduce them.
std::vector<Bucket> buckets_of(const RunConfig& q, const std::vector<Placed>& params) {
  const double limit = bucket_limit(q, params);
  std::vector<Bucket> buckets;
  std::int64_t open[] = {0, 0};  // elements outside experts, and of experts
  const int shards[] = {q.shards(), q.expert_shards()};
  const int travel = q.travel();
  const auto close = [&](std::size_t kind) {
    if (open[kind] > 0) buckets.push_back({std::exchange(open[kind], 0), shards[kind]});
  };
  for (std::size_t i = params.size(); i-- > 0;) {
    if (i + 1 < params.size() && params[i + 1].model_chunk != params[i].model_chunk) {
      close(0), close(1);
    }
    const std::size_t kind = params[i].shards == shards[0] ? 0 : 1;
    open[kind] += params[i].frozen ? 0 : params[i].padded;
    if (static_cast<double>(open[kind] * travel) >= limit) close(kind);
  }
  close(0), close(1);
  return buckets;
}

// Returns the sum of `size` of the largest bucket outside experts and the largest one of experts,
// which have buffers of their own if other ranks reduce them.
template <typename Size>
std::int64_t largest_of(const RunConfig& q, const std::vector<Bucket>& buckets, const Size& size) {
  std::int64_t others = 0, of_experts = 0;
  for (const Bucket& each : buckets) {
    std::int64_t& most = each.shards == q.shards() ? others : of_experts;
    most = std::max(most, size(each));
  }
  return others + of_experts;
}

// Returns the bytes of the records in memory of state in files: [Note: records] in
// core/state_layout.h.
std::int64_t record_bytes(const RunConfig& q, const std::vector<Placed>& params) {
  const bool sharded = sharding_of_stage(q.zero).optimizer;
  std::int64_t most = 0;
  for (const Placed& param : params) {
    if (param.frozen) continue;
    most = std::max(most, sharded ? param.padded / param.shards : param.padded);
  }
  const double largest =
      q.layout.optimizer() * static_cast<double>(std::min(most, kRecordElements));
  return kRecordBuffers * ((static_cast<std::int64_t>(largest) + 63) / 64 * 64);
}

// [Note: engine buffers] Two buffers of the largest bucket, and two of that of experts with ep, if
// gradients are reduced every micro-batch or sent in another type than they are stored in; with
// replicas, two shards of it for the sums to all-reduce ([Note: hybrid sharding]); the units
// gathered by stage 3; the gradients that a pipeline receives: one in use and one arriving; and the
// exchange of matrices on a GPU.
std::int64_t buffer_bytes(const RunConfig& q, const Coordinate& at,
                          const std::vector<Placed>& params) {
  std::int64_t bytes = 0;
  const std::vector<Bucket> buckets = buckets_of(q, params);
  if (q.policy() == ReducePolicy::each || q.travel() != q.layout.grad) {
    bytes +=
        2 * q.travel() * largest_of(q, buckets, [](const Bucket& each) { return each.elements; });
  }
  if (q.replicas() > 1) {
    bytes += q.travel() * largest_of(q, buckets, [](const Bucket& each) {
               return 2 * each.elements / each.shards;
             });
  }
  bytes += gathered_buffers(q, at, params);
  bytes += 2 * sent_bytes(q, at);
  if (needs_whole_matrices(q)) bytes += matrix_buffer_bytes(q, at);
  return bytes;
}

}  // namespace

std::int64_t replica_traffic(const RunConfig& q, const Coordinate& at) {
  if (q.replicas() == 1) return 0;
  const std::int64_t reductions = q.policy() == ReducePolicy::each ? q.micros() : 1;
  std::int64_t sent = 0;
  const Programs programs = programs_in_memory(q, at[Axis::ep]);
  for (const Bucket& bucket : buckets_of(q, placed_params(q, at, programs))) {
    const std::int64_t own = bucket.elements / bucket.shards;
    const std::int64_t part = (own + q.replicas() - 1) / q.replicas();
    sent += 2 * (q.replicas() - 1) * part * q.travel() * reductions;
  }
  return sent;
}

namespace {

RunMemory memory_of_rank(const RunConfig& q, const Coordinate& at, const Programs& programs,
                         LazySchedule& schedule) {
  const Sharding sharded = sharding_of_stage(q.zero);
  const std::vector<Placed> params = placed_params(q, at, programs);
  const bool grads_cut = sharded.grads && q.policy() == ReducePolicy::each;
  RunMemory memory;
  for (const Placed& param : params) {
    const auto share = [&](bool cut) { return cut ? param.padded / param.shards : param.padded; };
    memory.params += share(sharded.params) * q.layout.param;
    if (param.frozen) continue;
    memory.grads += share(grads_cut) * q.layout.grad;
    memory.optimizer += share(sharded.optimizer) * q.layout.optimizer();
  }
  if (needs_whole_matrices(q)) {
    for (const HiddenMatrix& matrix : hidden_matrices(q, at)) {
      const int shards = matrix.of_expert ? q.expert_shards() : q.shards();
      memory.optimizer -= shard_size(matrix.elements, shards) * (sharded.optimizer ? 1 : shards) *
                          (q.layout.moments - q.layout.matrix_moments);
    }
  }
  memory.buffers = buffer_bytes(q, at, params);
  if (q.offloads_optimizer()) {
    memory.on_disk = std::exchange(memory.optimizer, 0);
    memory.buffers += record_bytes(q, params);
  }
  std::vector<ChunkLoad> chunks;
  std::int64_t always = 0;
  for (const ModelPart& part : parts_on_rank(q, at)) {
    const auto chunk = static_cast<int>(chunks.size());
    ChunkLoad& load = chunks.emplace_back();
    load.kept = real(held_bytes(programs, layers_of_part(q.model, part), q.recompute));
    const std::vector<Moment> moments = moments_of_part(q, programs, params, chunk, part);
    always = moments.front().temporary;
    for (const Moment& moment : moments) {
      memory.temporary = std::max(memory.temporary, moment.temporary);
      load.most = std::max(load.most, real(moment.temporary - moment.gone));
    }
  }
  const PassPeak peak = peak_of_passes(q, at.pp(), chunks, real(always), schedule);
  memory.activations =
      static_cast<std::int64_t>(peak.kept) + sent_bytes(q, at) + arriving_bytes(q, at);
  auto most = static_cast<std::int64_t>(peak.temporary);
  if (needs_whole_matrices(q)) {
    // After the passes, activations and the units gathered by stage 3 are freed.
    const std::int64_t update = batch_bytes(q) + matrix_update_bytes(q, at);
    memory.temporary = std::max(memory.temporary, update);
    most = std::max(most, update - memory.activations - gathered_buffers(q, at, params));
  }
  memory.not_at_once = memory.temporary - most;
  return memory;
}

}  // namespace

RunMemory run_memory(const RunConfig& q, const Coordinate& at) {
  return run_memory(q, at, programs_in_memory(q, at[Axis::ep]));
}

RunMemory run_memory(const RunConfig& q, const Coordinate& at, const Programs& programs) {
  LazySchedule schedule(q);
  return memory_of_rank(q, at, programs, schedule);
}

std::vector<RunMemory> run_memory_by_rank(const RunConfig& q) {
  return run_memory_by_rank(q, programs_in_memory(q, 0));
}

std::vector<RunMemory> run_memory_by_rank(const RunConfig& q, const Programs& programs) {
  LazySchedule schedule(q);
  std::vector<RunMemory> all;
  for (int r = 0; r < q.pp(); ++r) {
    all.push_back(memory_of_rank(q, {{Axis::pp, r}}, programs, schedule));
  }
  return all;
}

}  // namespace tessera::planner
