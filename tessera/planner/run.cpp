#include "tessera/planner/run.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/core/shard.h"
#include "tessera/planner/grad_travel.h"
#include "tessera/planner/pipeline.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run_parts.h"
#include "tessera/planner/whole_matrices.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

std::int64_t tied_elements(std::int64_t own, int shards, int shard, bool sharded) {
  const std::int64_t kept = sharded ? shard_of(own, shards, shard).size : own;
  return (kept + 1) / 2 * 2;
}

Question pipeline_question(const RunQuestion& q) {
  Question pipeline;
  pipeline.axes.set(Axis::pp, q.pp());
  pipeline.grad_accum = q.accumulation;
  pipeline.schedule = q.schedule;
  pipeline.chunks = q.schedule == "zb-v" ? 2 : q.schedule == "interleaved" ? q.chunks : 1;
  return pipeline;
}

std::vector<ModelPart> parts_on_rank(const RunQuestion& q) {
  if (q.pp() == 1) return {{0, q.model.layers, true, true}};
  const Question pipeline = pipeline_question(q);
  const std::vector<int> layers = layers_of_stages(q.model, q.pp() * pipeline.chunks, q.split);
  std::vector<ModelPart> parts;
  for (int c = 0; c < pipeline.chunks; ++c) {
    parts.push_back(part_of_stage(layers, stage_of(pipeline, q.place.pp(), c)));
  }
  return parts;
}

std::vector<std::int64_t> shape_on_rank(const RunQuestion& q, const ParamSpec& spec) {
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

std::int64_t elements_on_rank(const RunQuestion& q, const ParamSpec& spec) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape_on_rank(q, spec)) elements *= size;
  return elements;
}

RunQuestion run_question(const Question& q, const Coordinate& place) {
  RunQuestion run;
  run.model = q.model;
  run.layout = q.layout;
  run.stage = q.zero;
  run.axes = q.axes;
  run.micro_batch = q.micro_batch;
  run.seq = q.seq;
  run.accumulation = static_cast<int>(q.micros());
  run.policy = q.policy();
  run.compression = q.compression();
  run.power_sgd = q.power_sgd;
  run.keep_params = q.keep_params;
  run.recompute = q.recompute;
  run.place = place;
  run.sequence_parallel = q.sequence_parallel;
  run.schedule = q.schedule;
  run.chunks = q.chunks;
  run.split = q.split;
  run.bucket_bytes = q.bucket_bytes;
  run.gather = q.gather.value_or(Gather::copy);
  run.prefetch = q.prefetch;
  run.gpu = q.gpu.value_or(false);
  run.light_activations = q.light_activations();
  return run;
}

RunPlan plan_run(const RunQuestion& q) {
  RunPlan plan;
  static_cast<RunMemory&>(plan) = run_memory(q);
  const Sharding sharded = sharding_of_stage(q.stage);
  const bool adapted = q.model.lora.any();
  std::int64_t part = 0;     // elements of all chunks of one rank
  std::int64_t trained = 0;  // those of them that are not frozen
  for (const ModelPart& each : parts_on_rank(q)) {
    for (const ParamSpec& spec : model_params(q.model, q.tp(), each)) {
      const std::int64_t own = elements_on_rank(q, spec);
      part += shard_size(own, q.shards());
      const bool tied = q.pp() > 1 && q.model.tied && spec.name == "tok.weight" && !adapted;
      if (!tied) continue;
      plan.sent[Axis::pp] +=
          tied_elements(own, q.shards(), q.place[Axis::dp_shard], sharded.optimizer) *
          q.layout.grad;
    }
    for (const ParamSpec& spec : adapter_params(q.model, each)) {
      trained += shard_size(elements_on_rank(q, spec), q.shards());
    }
    ProgramInput in = program_input(q);
    in.layers = each.last_layer - each.first_layer;
    in.embedding = each.embedding;
    in.head = each.head;
    plan.sent[Axis::tp] += std::llround(tensor_parallel_traffic(in).total()) * q.accumulation;
  }
  if (q.pp() > 1) {
    const double boundary = boundary_bytes(static_cast<double>(q.micro_batch * q.seq),
                                           static_cast<double>(q.model.hidden), q.layout.param,
                                           q.sequence_parallel ? q.tp() : 1);
    const auto schedule = schedule::make(q.schedule, q.pp(), q.accumulation, q.chunks);
    plan.sent[Axis::pp] += std::llround(pipeline_bytes(schedule, q.place.pp(), boundary));
  }

  if (!adapted) trained = part;
  // Frozen ones are gathered where nobody has them whole, and never change.
  const std::int64_t gathered = !adapted ? part : trained + (sharded.params ? part : 0);
  TrafficQuestion traffic;
  traffic.stage = q.stage;
  traffic.dp = q.dp();
  traffic.replicas = q.replicas();
  traffic.micro_batches = q.accumulation;
  traffic.param_bytes = static_cast<double>(gathered * q.shards() * q.layout.param);
  traffic.grad_bytes = static_cast<double>(trained * q.shards() * q.travel());
  if (q.low_rank()) {
    traffic.grad_bytes = 4 * static_cast<double>(low_rank_of(q, parts_on_rank(q)).traveling);
  }
  traffic.policy = q.policy;
  traffic.keep_params = q.keep_params;
  // The padded bytes divide by the ranks, so what is rounded away is the error of the fractions.
  const DataParallelTraffic sent = data_parallel_traffic(traffic);
  plan.sent[Axis::dp_shard] = std::llround(sent.along_shards());
  plan.sent[Axis::dp_replicate] = replica_traffic(q);
  if (needs_whole_matrices(q)) plan.sent[Axis::dp_shard] += matrix_traffic(q);
  return plan;
}

}  // namespace tessera::planner
