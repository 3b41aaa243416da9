#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/step_time.h"
#include "tessera/simulator/scenario.h"

namespace tessera::simulator {

Scenario scenario_of(const planner::Question& q) {
  if (q.state_only()) {
    throw UsageError(
        "--params alone says nothing about time; give --model, or --layers --hidden --heads "
        "--vocab");
  }
  Scenario s;
  s.schedule = schedule::make(q.schedule, q.pp(), static_cast<int>(q.micros()), q.chunks);
  const auto times = planner::chunk_times(q);
  const auto shares = planner::stage_shares(q);
  for (std::size_t r = 0; r < times.size(); ++r) {
    std::vector<Chunk> chunks;
    for (std::size_t c = 0; c < times[r].size(); ++c) {
      const planner::ChunkTime& time = times[r][c];
      const planner::StageShare& share = shares[r][c];
      Chunk chunk;
      chunk.forward = time.forward;
      chunk.backward_input = time.backward_input;
      chunk.backward_weight = time.backward_weight;
      chunk.tp_forward = time.tp_forward;
      chunk.tp_backward = time.tp_backward;
      chunk.grad_bytes = time.grad_bytes;
      chunk.param_bytes = time.param_bytes;
      chunk.units = std::max(
          1, static_cast<int>(share.layers) + (share.embedding ? 1 : 0) + (share.head ? 1 : 0));
      chunks.push_back(chunk);
    }
    s.chunks.push_back(std::move(chunks));
  }
  s.axes = q.axes;
  s.fabric.inside = q.hardware.inside;
  s.fabric.between = q.hardware.between;
  s.fabric.per_node = q.per_node;
  s.fabric.rail_share = q.hardware.rail_share;
  s.hop_bytes = planner::hop_bytes(q);
  s.hop_latency = 2 * q.hardware.launch;
  if (q.model.tied && q.schedule != "zb-v") {
    s.tied_bytes = planner::tied_bytes(q);
  }
  s.bucket_bytes = 0;
  for (const auto& rank : shares) {
    const double params = planner::params_on_rank(q, rank);
    s.bucket_bytes = std::max(s.bucket_bytes, planner::bucket_bytes(q, params));
    s.optimizer = std::max(s.optimizer, planner::optimizer_time(q, params));
  }
  s.zero = q.zero;
  s.policy = q.policy();
  s.keep_params = q.keep_params;
  s.overlap_grad_reduce = q.overlap_grad_reduce;
  s.overlap_param_gather = q.overlap_param_gather;
  return s;
}

}  // namespace tessera::simulator
