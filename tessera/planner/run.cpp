#include "tessera/planner/run.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/planner/parameters.h"
#include "tessera/planner/pipeline.h"
#include "tessera/planner/tensor_parallel.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

namespace {

std::int64_t numel(const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

}  // namespace

std::int64_t tied_elements(std::int64_t own, int dp, int dp_rank, bool sharded) {
  const std::int64_t chunk = chunk_elements(own, dp);
  const std::int64_t kept = sharded ? std::min(chunk, own - std::min(own, chunk * dp_rank)) : own;
  return (kept + 1) / 2 * 2;
}

RunPlan plan_run(const RunQuestion& q) {
  const Sharding sharded = sharding_of_stage(q.stage);
  schedule::Schedule schedule;
  if (q.pp > 1) schedule = schedule::make(q.schedule, q.pp, q.accumulation, q.chunks);
  const int stages = q.pp > 1 ? schedule.stage_count() : 1;
  const std::vector<int> layers = layers_of_stages(q.model, stages, q.pp > 1 ? q.split : "even");
  std::vector<ModelPart> parts;
  for (int c = 0; c < (q.pp > 1 ? schedule.chunks : 1); ++c) {
    parts.push_back(part_of_stage(layers, q.pp > 1 ? schedule.stage(q.pp_rank, c) : 0));
  }

  RunPlan plan;
  std::int64_t part = 0;  // elements of all chunks of one rank
  for (const ModelPart& each : parts) {
    for (const ParamSpec& spec : model_params(q.model, q.tp, each)) {
      const std::int64_t own = numel(local_shape(spec, q.tp_rank, q.tp));
      part += chunk_elements(own, q.dp);
      const bool tied = q.pp > 1 && q.model.tied && spec.name == "tok.weight";
      if (!tied) continue;
      plan.sent_pp += tied_elements(own, q.dp, q.dp_rank, sharded.optimizer) * q.layout.grad;
    }
    TensorParallelQuestion tensor;
    tensor.model = q.model;
    tensor.tp = q.tp;
    tensor.sequence_parallel = q.sequence_parallel;
    tensor.batch = q.micro_batch;
    tensor.seq = q.seq;
    tensor.element = q.layout.param;
    tensor.recompute = q.recompute;
    tensor.layers = each.last_layer - each.first_layer;
    tensor.embedding = each.embedding;
    tensor.head = each.head;
    plan.sent_tp += std::llround(tensor_parallel_traffic(tensor).total()) * q.accumulation;
  }
  if (q.pp > 1) {
    const double boundary = boundary_bytes(static_cast<double>(q.micro_batch * q.seq),
                                           static_cast<double>(q.model.hidden), q.layout.param,
                                           q.sequence_parallel ? q.tp : 1);
    plan.sent_pp += std::llround(pipeline_bytes(schedule, q.pp_rank, boundary));
  }
  if (parts.size() == 1) {
    GptActivations kept;
    kept.model = q.model;
    kept.batch = q.micro_batch;
    kept.seq = q.seq;
    kept.element = q.layout.param;
    kept.recompute = q.recompute;
    kept.tp = q.tp;
    kept.sequence_parallel = q.sequence_parallel;
    kept.layers = parts[0].last_layer - parts[0].first_layer;
    kept.embedding = parts[0].embedding;
    kept.head = parts[0].head;
    const std::int64_t in_flight =
        q.pp == 1 ? 1 : schedule::validate(schedule).in_flight[static_cast<std::size_t>(q.pp_rank)];
    plan.activations = in_flight * gpt_activation_bytes(kept);
  }
  const std::int64_t whole = part * q.dp;
  const bool grads_cut = sharded.grads && q.policy == ReducePolicy::each;
  plan.params = (sharded.params ? part : whole) * q.layout.param;
  plan.grads = (grads_cut ? part : whole) * q.layout.grad;
  plan.optimizer = (sharded.optimizer ? part : whole) * q.layout.optimizer();

  TrafficQuestion traffic;
  traffic.stage = q.stage;
  traffic.dp = q.dp;
  traffic.micro_batches = q.accumulation;
  traffic.param_bytes = static_cast<double>(whole * q.layout.param);
  traffic.grad_bytes = static_cast<double>(whole * q.layout.grad);
  traffic.policy = q.policy;
  traffic.keep_params = q.keep_params;
  // The padded bytes divide by the ranks, so what is rounded away is the error of the fractions.
  plan.sent_dp = std::llround(data_parallel_traffic(traffic).total());
  return plan;
}

}  // namespace tessera::planner
