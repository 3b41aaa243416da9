#include "tessera/planner/expert_costs.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/planner/places.h"
#include "tessera/planner/program_builder.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

bool crosses_hosts(const RunConfig& q) {
  return q.ep() > 1 && places(q).along[Axis::ep].nodes() > 1;
}

// Returns the state of the experts of one pipeline rank.
double expert_state(const RunConfig& q, int pipeline_rank) {
  const auto chunks = chunk_layers(q)[static_cast<std::size_t>(pipeline_rank)];
  const double params = experts_on_rank(q, chunks);
  const bool frozen = q.model.lora.any();
  return frozen ? frozen_bytes(q.layout, q.zero, params, q.expert_shards()).total()
                : state_bytes(q.layout, q.zero, params, q.expert_shards(), q.policy()).total();
}

ExpertExchange exchange_of(const Plan& plan) {
  const RunConfig& q = plan.question;
  ExpertExchange exchange;
  if (q.ep() == 1) return exchange;
  for (const TrafficRow& row : plan.traffic.rows) {
    if (row.axis == Axis::ep) exchange.calls += row.calls;
  }
  exchange.bytes = plan.traffic.sent[Axis::ep];
  exchange.seconds = plan.time.comm[Axis::ep];
  exchange.crosses_hosts = crosses_hosts(q);
  return exchange;
}

ExpertMemory memory_at(const RunConfig& q, int ep) {
  ExpertMemory memory;
  memory.ep = ep;
  RunConfig other = q;
  other.axes.set(Axis::ep, ep);
  try {
    resolve_in_place(other);
  } catch (const UsageError& error) {
    memory.refused = error.what();
    return memory;
  }
  const std::vector<Memory> by_rank = memory_by_rank(other);
  const int rank = most_loaded_rank(by_rank);
  memory.experts = experts_on_rank(other.model.experts.count, ep, -1).count();
  memory.state = expert_state(other, rank);
  memory.needed = by_rank[static_cast<std::size_t>(rank)].total();
  memory.fits = memory.needed <= usable_memory(other.hardware);
  memory.crosses_hosts = crosses_hosts(other);
  return memory;
}

}  // namespace

ExpertCosts expert_costs(const Plan& plan) {
  const RunConfig& q = plan.question;
  const ModelShape& m = q.model;
  ExpertCosts costs;
  costs.parameters = plan.parameters;
  costs.active = real(m.active_params());
  const ProgramInput in = program_input(q);
  RunConfig whole = q;  // on one rank
  whole.axes = Axes();
  costs.in_experts = real(m.expert_layers()) * layer_experts_on_rank(whole);
  costs.on_a_rank = experts_on_rank(m.experts.count, q.ep(), -1).count();
  const double rows = real(q.micro_batch * q.rank_tokens());
  costs.routed = rows * real(m.experts.per_token);
  costs.mean = tokens_per_expert(q);
  costs.busiest = routed_rows(in, rows, costs.on_a_rank);
  costs.dropped = 1 - q.expert_load() / q.expert_received();
  costs.exchange = exchange_of(plan);
  return costs;
}

std::vector<ExpertMemory> expert_memory(const Plan& plan) {
  const RunConfig& q = plan.question;
  std::vector<int> counts = expert_rank_counts(q.model, q.axes);
  if (std::find(counts.begin(), counts.end(), q.ep()) == counts.end()) {
    counts.insert(std::upper_bound(counts.begin(), counts.end(), q.ep()), q.ep());
  }
  std::vector<ExpertMemory> all;
  for (const int ep : counts) all.push_back(memory_at(q, ep));
  return all;
}

}  // namespace tessera::planner
