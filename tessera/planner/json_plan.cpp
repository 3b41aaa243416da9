// Plans, searches and limits as JSON.

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/planner/expert_costs.h"
#include "tessera/planner/json.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

Json shape_json(const ModelShape& m) {
  Json json = {{"name", m.name},   {"layers", m.layers},     {"hidden", m.hidden},
               {"heads", m.heads}, {"kv_heads", m.kv_heads}, {"ffn", m.ffn},
               {"vocab", m.vocab}};
  if (!m.experts.any()) return json;
  const Experts& e = m.experts;
  json["experts"] = e.count;
  json["experts_per_token"] = e.per_token;
  json["expert_ffn"] = e.width;
  json["shared_expert_ffn"] = e.shared_width;
  json["dense_layers"] = e.dense_layers;
  json["router_scores"] = name(e.scores);
  json["expert_capacity"] = e.capacity;
  return json;
}

Json question_json(const RunConfig& q) {
  Json json;
  if (q.state_only()) {
    json["params"] = q.params;
  } else {
    json["model"] = shape_json(q.model);
    json["seq"] = q.seq;
  }
  json["gpus"] = q.world();
  for (const Axis axis : kPrintedAxes) json[std::string(axis_name(axis))] = q.axes.given(axis);
  json["sequence_parallel"] = q.sequence_parallel;
  if (q.cp() > 1) json["cp_kind"] = name(q.cp_kind);
  if (q.model.experts.any()) json["expert_imbalance"] = q.expert_imbalance;
  json["slice_hops"] = q.slice_hops.value_or(false);
  json["order"] = q.order;
  json["zero"] = q.zero;
  json["layout"] = q.layout.name;
  json["grad_reduce"] = name(q.policy());
  if (q.optimizer_state != OptimizerState::fp32) {
    json["optimizer_state"] = name(q.optimizer_state);
  }
  if (q.offloads_optimizer()) json["offload"] = q.offload;
  if (q.grad_compression != GradCompression::none) {
    json["grad_compression"] = name(q.grad_compression);
  }
  json["micro_batch"] = q.micro_batch;
  json["grad_accum"] = q.grad_accum;
  json["global_batch"] = q.global_batch;
  json["recompute"] = name(q.recompute);
  json["attention"] = q.attention == Attention::fused ? "fused" : "unfused";
  if (q.software) json["software"] = name(*q.software);
  json["schedule"] = name(q.schedule);
  json["split"] = q.split;
  json["chunks"] = q.chunks;
  json["hardware"] = q.hardware.name;
  json["nodes"] = q.nodes;
  json["gpus_per_node"] = q.per_node;
  return json;
}

Json all_memory_json(const Memory& m) {
  Json json = {
      {"params", whole_json(m.params)},           {"grads", whole_json(m.grads)},
      {"optimizer", whole_json(m.optimizer)},     {"activations", whole_json(m.activations)},
      {"buffers", whole_json(m.buffers)},         {"temporary", whole_json(m.temporary)},
      {"not_at_once", whole_json(m.not_at_once)}, {"total", whole_json(m.total())}};
  if (m.on_disk > 0) json["on_disk"] = whole_json(m.on_disk);
  return json;
}

Json assumed_json(const std::optional<Assumed>& assumed) {
  if (!assumed) return nullptr;
  return {{"model", shape_json(assumed->model)},
          {"parameters", assumed->model.params()},
          {"seq", assumed->seq},
          {"memory", all_memory_json(assumed->memory)}};
}

Json traffic_json(const Traffic& t) {
  Json json;
  for (const Axis axis : kPrintedAxes) {
    json[std::string(axis_name(axis))] = whole_json(t.sent[axis]);
  }
  json["total"] = whole_json(t.total());
  json["dp_by_policy"] = {{"each", whole_json(t.dp_each)}, {"last", whole_json(t.dp_last)}};
  Json& rows = json["rows"] = Json::array();
  for (const TrafficRow& row : t.rows) {
    rows.push_back({{"axis", axis_name(row.axis)},
                    {"what", row.what},
                    {"calls", whole_json(row.calls)},
                    {"bytes", whole_json(row.bytes)}});
  }
  return json;
}

void add_speed(Json& json, const Plan& plan) {
  json["time"] = time_json(plan);
  if (plan.question.state_only()) {  // the time is unknown
    for (const char* key : {"tokens_per_s", "model_flops", "mfu"}) json[key] = nullptr;
    return;
  }
  json["time"]["interval"] = {
      {"low", plan.interval.low}, {"high", plan.interval.high}, {"basis", plan.interval.basis}};
  json["tokens_per_s"] = plan.tokens_per_s;
  json["model_flops"] = plan.model_flops;
  json["model_flops_per_s_per_gpu"] = plan.model_flops / (plan.time.step() * plan.question.world());
  json["mfu"] = plan.mfu;
  if (plan.price > 0) json["price_per_step"] = plan.price;
  if (plan.joules > 0) json["joules_per_step"] = plan.joules;
}

void add_advice(Json& json, const Plan& plan) {
  json["remedy"] = plan.remedy;
  Json advice = Json::array(), changes = Json::array();
  for (const Advice& each : plan.advice) {
    advice.push_back(each.text);
    changes.push_back({{"flags", each.flags},
                       {"seconds_saved", plan.question.state_only() ? Json() : Json(each.seconds)},
                       {"bytes_saved", whole_json(each.bytes)},
                       {"bytes_sent_saved", whole_json(each.sent)},
                       {"fits", each.fits}});
  }
  json["advice"] = std::move(advice);
  json["changes"] = std::move(changes);
  json["notes"] = plan.notes;
}

Json limit_json(const BatchLimit& limit) {
  return {{"zero", limit.zero},
          {"dp", limit.dp},
          {"micro_batch", limit.micro_batch},
          {"global_batch", limit.global_batch},
          {"memory", whole_json(limit.memory)}};
}

Json limit_json(const ModelLimit& limit) {
  Json json = {{"zero", limit.zero},
               {"dp", limit.dp},
               {"parameters", whole_json(limit.params)},
               {"memory", whole_json(limit.memory)}};
  if (limit.model.layers > 0) json["model"] = shape_json(limit.model);
  return json;
}

template <typename Limits>
std::string limits_text(const Limits& limits) {
  Json json = limit_json(limits.asked);
  for (const auto& each : limits.rows) json["rows"].push_back(limit_json(each));
  return one_line(json);
}

}  // namespace

Json whole_json(double value) {
  if (std::abs(value) < 9e18) return std::llround(value);
  return value;
}

std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Costs of experts; the rows of by_ep are the numbers of expert-parallel ranks worth trying.
static Json experts_json(const Plan& plan) {
  const ExpertCosts costs = expert_costs(plan);
  const ExpertExchange& exchange = costs.exchange;
  Json by_ep = Json::array();
  for (const ExpertMemory& each : expert_memory(plan)) {
    Json& row = by_ep.emplace_back(Json{{"ep", each.ep}});
    if (!each.refused.empty()) {
      row["error"] = each.refused;
      continue;
    }
    row["experts_on_a_rank"] = each.experts;
    row["expert_state"] = whole_json(each.state);
    row["memory"] = whole_json(each.needed);
    row["fits"] = each.fits;
    row["crosses_hosts"] = each.crosses_hosts;
  }
  return {{"parameters_in_experts", whole_json(costs.in_experts)},
          {"on_a_rank", costs.on_a_rank},
          {"rows",
           {{"routed", whole_json(costs.routed)},
            {"busiest_rank", whole_json(costs.busiest)},
            {"dropped", costs.dropped}}},
          {"all_to_all",
           {{"calls", whole_json(exchange.calls)},
            {"bytes", whole_json(exchange.bytes)},
            {"seconds", exchange.seconds},
            {"crosses_hosts", exchange.crosses_hosts}}},
          {"by_ep", std::move(by_ep)}};
}

Json memory_json(const Plan& plan) {
  Json json = all_memory_json(plan.memory);
  if (plan.question.state_only()) {  // the state is the total
    for (const char* unknown : {"activations", "buffers", "temporary"}) json[unknown] = nullptr;
    json.erase("not_at_once");
  }
  return json;
}

Json fits_json(const Plan& plan) { return plan.fit_known ? Json(plan.fits) : Json(); }

Json time_json(const Plan& plan) {
  if (plan.question.state_only()) return nullptr;
  const StepTime& t = plan.time;
  Json json = {{"compute", t.compute}, {"comm_exposed", t.exposed()}};
  Json& by_axis = json["comm_exposed_by_axis"];
  for (const Axis axis : kPrintedAxes) by_axis[std::string(axis_name(axis))] = t.comm[axis];
  json["bubble"] = t.bubble;
  json["optimizer"] = t.optimizer;
  json["step"] = t.step();
  return json;
}

Json tree_of(const Plan& plan, bool advised) {
  const RunConfig& q = plan.question;
  const bool sized = !q.state_only();
  Json json = {{"parameters", whole_json(plan.parameters)},
               {"parameters_in_blocks", sized ? whole_json(plan.in_blocks) : Json()},
               {"parameters_in_embeddings", sized ? whole_json(plan.in_embeddings) : Json()},
               {"parameters_on_most_loaded_rank", whole_json(plan.on_a_rank)}};
  if (q.model.experts.any()) {
    json["active_parameters"] = q.model.active_params();
    const double tokens = tokens_per_expert(q);
    json["tokens_per_expert"] = {{"mean", tokens}, {"busiest", tokens * q.expert_load()}};
    json["experts"] = experts_json(plan);
  }
  json["memory"] = memory_json(plan);
  if (!sized) json["assumed"] = assumed_json(plan.assumed);
  json["pipeline_rank"] = plan.rank;
  if (q.pipelined() && sized) {
    Json& ranks = json["memory_by_pipeline_rank"];
    for (const Memory& memory : plan.by_rank) ranks.push_back(all_memory_json(memory));
  }
  json["traffic"] = traffic_json(plan.traffic);
  add_speed(json, plan);
  json["fits"] = fits_json(plan);
  json["margin"] = whole_json(plan.margin);
  // Without a step time the bound is unknown, unless the plan does not fit.
  json["bound"] = sized || !plan.fits ? Json(name(plan.bound)) : Json();
  if (advised) add_advice(json, plan);
  json["question"] = question_json(q);
  return json;
}

Json tree_of(const SearchResult& result) {
  Json best = Json::array();
  for (const Plan& plan : result.best) {
    best.push_back(tree_of(plan));
    best.back()["as_good_as_the_best"] = as_good_as(plan, result.best.front());
  }
  Json json = {{"best", std::move(best)},
               {"tried", result.tried},
               {"fitting", result.fitting},
               {"ruled_out", Json::object()}};
  for (const auto& [reason, count] : result.ruled_out) json["ruled_out"][reason] = count;
  if (result.closest) json["closest"] = tree_of(*result.closest);
  if (result.nearest_fit) json["nearest_fit"] = tree_of(*result.nearest_fit);
  return json;
}

std::string to_json(const Plan& plan) { return one_line(tree_of(plan)); }
std::string to_json(const SearchResult& result) { return one_line(tree_of(result)); }
std::string to_json(const BatchLimits& limits) { return limits_text(limits); }
std::string to_json(const ModelLimits& limits) { return limits_text(limits); }

}  // namespace tessera::planner
