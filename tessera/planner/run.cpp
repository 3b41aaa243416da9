#include "tessera/planner/run.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/whole_matrices.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

std::int64_t tied_elements(std::int64_t own, int shards, int shard, bool sharded) {
  const std::int64_t kept = sharded ? nth_shard(own, shard_size(own, shards), shard).size : own;
  return (kept + 1) / 2 * 2;
}

schedule::Schedule schedule_of(const RunConfig& q) {
  return schedule::make(q.schedule, q.pp(), static_cast<int>(q.micros()), q.chunks);
}

std::vector<ModelPart> parts_on_rank(const RunConfig& q, const Coordinate& at) {
  if (!q.pipelined()) return {{0, q.model.layers, true, true}};
  const std::vector<int> layers = layers_of_stages(q.model, q.stages(), q.split);
  std::vector<ModelPart> parts;
  for (int c = 0; c < q.chunks; ++c) {
    parts.push_back(part_of_stage(layers, stage_of(q, at.pp(), c)));
  }
  return parts;
}

static ExpertRank expert_rank(const RunConfig& q, const Coordinate& at) {
  return {q.ep(), at[Axis::ep]};
}

std::vector<ParamSpec> model_params(const RunConfig& q, const ModelPart& part,
                                    const Coordinate& at) {
  return model_params(q.model, q.tp(), part, expert_rank(q, at));
}

std::vector<ParamSpec> trained_params(const RunConfig& q, const ModelPart& part,
                                      const Coordinate& at) {
  return trained_params(q.model, q.tp(), part, expert_rank(q, at));
}

StageLayers layers_of_part(const ModelShape& model, const ModelPart& part) {
  return stage_layers(model, part.first_layer, part.last_layer - part.first_layer, part.embedding,
                      part.head);
}

std::vector<std::int64_t> shape_on_rank(const RunConfig& q, const ParamSpec& spec) {
  std::vector<std::int64_t> shape = spec.shape;
  for (const ParamSpec::Cut& cut : spec.cuts) {
    std::int64_t& size = shape.at(static_cast<std::size_t>(cut.dim));
    const std::int64_t ranks = q.axes.size(cut.axis);
    std::vector<ParamSpec::Segment> segments = cut.segments;
    if (segments.empty()) segments.push_back({size, 0});
    size = 0;
    for (const ParamSpec::Segment& segment : segments) {
      const std::int64_t parts = std::min(segment.parts == 0 ? ranks : segment.parts, ranks);
      size += (segment.length + parts - 1) / parts;
    }
  }
  return shape;
}

std::int64_t elements_on_rank(const RunConfig& q, const ParamSpec& spec) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape_on_rank(q, spec)) elements *= size;
  return elements;
}

RunPlan plan_run(const RunConfig& q, const Coordinate& at) {
  RunPlan plan;
  static_cast<RunMemory&>(plan) = run_memory(q, at);
  const Sharding sharded = sharding_of_stage(q.zero);
  const bool adapted = q.model.lora.any();
  // Sharded elements of all chunks of a rank outside experts and in experts, and those of adapters.
  std::int64_t part = 0, of_experts = 0, of_adapters = 0;
  for (const ModelPart& each : parts_on_rank(q, at)) {
    for (const ParamSpec& spec : model_params(q, each, at)) {
      const std::int64_t own = elements_on_rank(q, spec);
      (spec.of_expert ? of_experts : part) +=
          shard_size(own, spec.of_expert ? q.expert_shards() : q.shards());
      const bool tied = q.pipelined() && q.model.tied && spec.name == "tok.weight" && !adapted;
      if (!tied) continue;
      plan.sent[Axis::pp] +=
          tied_elements(own, q.shards(), q.axes.index(kShardAxes, at), sharded.optimizer) *
          q.layout.grad;
    }
    for (const ParamSpec& spec : adapter_params(q.model, each)) {
      of_adapters += shard_size(elements_on_rank(q, spec), q.shards());
    }
    const StageLayers layers = layers_of_part(q.model, each);
    ProgramInput in = memory_input(q);
    in.layers = layers.layers;
    in.embedding = each.embedding;
    in.head = each.head;
    in.dense = layers.dense;
    in.ep_rank = at[Axis::ep];
    for (const Axis axis : kInLayerAxes) {
      plan.sent[axis] += std::llround(operation_traffic(in, axis).total()) * q.micros();
    }
  }
  if (q.pipelined()) {
    const double boundary =
        boundary_bytes(static_cast<double>(q.micro_batch * q.rank_tokens()),
                       static_cast<double>(q.model.hidden), q.layout.param, q.sequence_ranks());
    plan.sent[Axis::pp] += std::llround(pipeline_bytes(schedule_of(q), at.pp(), boundary));
  }

  // Frozen parameters are gathered only if they are sharded, since they are never updated.
  SentParams sent_elements;
  const bool gathers = !adapted || sharded.params;
  sent_elements.trained = real((adapted ? of_adapters : part) * q.shards());
  sent_elements.gathered = real(((gathers ? part : 0) + of_adapters) * q.shards());
  sent_elements.trained_experts = real((adapted ? 0 : of_experts) * q.expert_shards());
  sent_elements.gathered_experts = real((gathers ? of_experts : 0) * q.expert_shards());
  // Padded bytes are divisible by the ranks, so rounding only removes floating-point errors.
  const DataParallelTraffic sent = sent_along_dp(q, sent_elements, q.policy());
  plan.sent[Axis::dp_shard] = std::llround(sent.along_shards());
  plan.sent[Axis::dp_replicate] = replica_traffic(q, at);
  if (needs_whole_matrices(q)) plan.sent[Axis::dp_shard] += matrix_traffic(q, at);
  return plan;
}

}  // namespace tessera::planner
