#include "tessera/planner/plan.h"

#include <algorithm>

#include "tessera/planner/plan_parts.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

// Share of a step spent waiting for the network above which the plan is network-bound.
constexpr double kNetworkShare = 0.2;

Bound binding(const Plan& plan) {
  if (!plan.fits) return Bound::memory;
  const double step = plan.time.step();
  return step > 0 && plan.time.exposed() > kNetworkShare * step ? Bound::network : Bound::compute;
}

}  // namespace

const char* name(Bound bound) {
  switch (bound) {
    case Bound::compute: return "compute";
    case Bound::memory: return "memory";
    case Bound::network: return "network";
  }
  return "?";
}

double model_flops(const RunConfig& q) {
  if (q.state_only()) return 0;
  // The whole model on one rank, for one sequence.
  ProgramInput in = program_input(q);
  in.axes = {};
  in.batch = in.sequence_ranks = 1;
  in.imbalance = 1;
  in.model.experts.capacity = 0;
  in.tokens = in.seq;
  in.fused = false;
  const auto of = [&](ProgramPart part) { return program_flops(layer_program(in, part)); };
  const std::int64_t sparse = q.model.experts.any() ? q.model.expert_layers() : q.model.layers;
  const std::int64_t dense = q.model.layers - sparse;
  const bool first_is_dense = dense > 0;
  double layers = of(ProgramPart::first_layer) +
                  real(sparse - (first_is_dense ? 0 : 1)) * of(ProgramPart::layer);
  if (first_is_dense) layers += real(dense - 1) * of(ProgramPart::dense_layer);
  return (layers + of(ProgramPart::head)) * real(q.global_batch);
}

PlanParts::PlanParts(const RunConfig& q) {
  if (q.state_only()) return;
  times = part_times(q);
  in_memory = programs_in_memory(q);
}

Plan plan_numbers(const RunConfig& q) { return plan_numbers(q, PlanParts(q)); }

Plan plan_numbers(const RunConfig& q, const PlanParts& parts) {
  Plan plan;
  plan.question = q;
  plan.by_rank = memory_by_rank(q, parts.in_memory);
  plan.rank = most_loaded_rank(plan.by_rank);
  plan.memory = plan.by_rank[static_cast<std::size_t>(plan.rank)];
  plan.traffic = traffic_of(q);
  const auto shares = chunk_layers(q);
  for (const auto& chunks : shares) {
    plan.on_a_rank = std::max(plan.on_a_rank, params_on_rank(q, chunks));
  }
  if (q.state_only()) {
    plan.parameters = q.params;
  } else {
    plan.parameters = real(q.model.params());
    plan.in_blocks = real(q.model.block_params() + q.model.final_norm_params());
    plan.in_embeddings = real(q.model.embedding_params() + q.model.head_params());
    plan.time = step_time(describe_step(q, parts.times));
    plan.interval = step_interval(q, plan.time.step());
    plan.model_flops = model_flops(q);
    const double step = plan.time.step(), world = q.world();
    const double peak = q.hardware.product_peak(q.layout.param);
    if (step > 0) {
      plan.tokens_per_s = real(q.global_batch) * real(q.seq) / step;
      if (peak > 0) plan.mfu = plan.model_flops / (step * world * peak);
    }
    plan.price = q.hardware.price_per_hour / 3600 * step * world;
    plan.joules = q.hardware.watts * step * world;
  }
  plan.assumed = assumed_for(q);
  plan.margin = usable_memory(q.hardware) - plan.needed();
  plan.fits = plan.margin >= 0;
  plan.fit_known = !plan.fits || !q.state_only() || plan.assumed.has_value();
  plan.bound = binding(plan);
  return plan;
}

Plan advised_plan(const RunConfig& resolved) {
  const PlanParts parts(resolved);
  Plan plan = plan_numbers(resolved, parts);
  plan.advice = advice_for(plan, parts);
  plan.notes = notes_for(plan);
  plan.remedy = remedy_for(plan);
  return plan;
}

Plan make_plan(const RunConfig& question) { return advised_plan(resolve(question)); }

}  // namespace tessera::planner
