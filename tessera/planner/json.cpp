#include "tessera/planner/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/json_error.h"
#include "tessera/core/text.h"
#include "tessera/planner/places.h"

namespace tessera::planner {
namespace {

using Json = nlohmann::ordered_json;

// Bytes and counts are whole; what is larger than 64 bits stays a number with an exponent.
Json whole_json(double value) {
  if (std::abs(value) < 9e18) return std::llround(value);
  return value;
}

std::string one_line(const Json& json) {
  // Whatever a message quotes, the line is valid UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json shape_json(const ModelShape& m) {
  return {{"name", m.name},         {"layers", m.layers}, {"hidden", m.hidden}, {"heads", m.heads},
          {"kv_heads", m.kv_heads}, {"ffn", m.ffn},       {"vocab", m.vocab}};
}

Json question_json(const Question& q) {
  Json json;
  if (q.state_only()) {
    json["params"] = whole_json(q.params);
  } else {
    json["model"] = shape_json(q.model);
    json["seq"] = q.seq;
  }
  json["gpus"] = q.world();
  for (const Axis& axis : q.axes.written()) json[std::string(axis.name)] = axis.size;
  json["sequence_parallel"] = q.sequence_parallel;
  json["slice_hops"] = q.slice_hops.value_or(false);
  json["order"] = q.order;
  json["zero"] = q.zero;
  json["layout"] = q.layout.name;
  json["grad_reduce"] = q.policy() == ReducePolicy::each ? "each" : "last";
  if (q.compression() != GradCompression::none) {
    json["grad_compression"] = name(q.compression());
    if (q.power_sgd_asked()) json["powersgd_rank"] = q.power_sgd.rank;
  }
  json["micro_batch"] = q.micro_batch;
  json["grad_accum"] = q.grad_accum;
  json["global_batch"] = q.global_batch;
  json["recompute"] = name(q.recompute);
  json["attention"] = q.attention == Attention::fused ? "fused" : "unfused";
  if (q.software) json["software"] = name(*q.software);
  json["schedule"] = q.schedule;
  json["split"] = q.split;
  json["chunks"] = q.chunks;
  json["hardware"] = q.hardware.name;
  json["nodes"] = q.nodes;
  json["gpus_per_node"] = q.per_node;
  return json;
}

// Of a size alone nothing is known but the state, which is then the total.
Json state_json(const Memory& m) {
  return {{"params", whole_json(m.params)},
          {"grads", whole_json(m.grads)},
          {"optimizer", whole_json(m.optimizer)},
          {"activations", nullptr},
          {"buffers", nullptr},
          {"temporary", nullptr},
          {"total", whole_json(m.total())}};
}

Json memory_json(const Memory& m) {
  return {{"params", whole_json(m.params)},           {"grads", whole_json(m.grads)},
          {"optimizer", whole_json(m.optimizer)},     {"activations", whole_json(m.activations)},
          {"buffers", whole_json(m.buffers)},         {"temporary", whole_json(m.temporary)},
          {"not_at_once", whole_json(m.not_at_once)}, {"total", whole_json(m.total())}};
}

Json assumed_json(const std::optional<Assumed>& assumed) {
  if (!assumed) return nullptr;
  return {{"model", shape_json(assumed->model)},
          {"parameters", assumed->model.params()},
          {"seq", assumed->seq},
          {"memory", memory_json(assumed->memory)}};
}

Json traffic_json(const Traffic& t) {
  Json rows = Json::array();
  for (const TrafficRow& row : t.rows) {
    rows.push_back({{"axis", row.axis},
                    {"what", row.what},
                    {"calls", whole_json(row.calls)},
                    {"bytes", whole_json(row.bytes)}});
  }
  return {{"dp", whole_json(t.dp)},
          {"tp", whole_json(t.tp)},
          {"pp", whole_json(t.pp)},
          {"total", whole_json(t.total())},
          {"dp_by_policy", {{"each", whole_json(t.dp_each)}, {"last", whole_json(t.dp_last)}}},
          {"rows", std::move(rows)}};
}

Json time_json(const StepTime& t) {
  return {{"compute", t.compute},
          {"comm_exposed", t.exposed()},
          {"comm_exposed_by_axis", {{"dp", t.dp}, {"tp", t.tp}, {"pp", t.pp}}},
          {"bubble", t.bubble},
          {"optimizer", t.optimizer},
          {"step", t.step()}};
}

Json plan_json(const Plan& plan) {
  const Question& q = plan.question;
  Json json;
  json["parameters"] = whole_json(plan.parameters);
  json["parameters_in_blocks"] = q.state_only() ? Json() : whole_json(plan.in_blocks);
  json["parameters_in_embeddings"] = q.state_only() ? Json() : whole_json(plan.in_embeddings);
  json["parameters_on_most_loaded_rank"] = whole_json(plan.on_a_rank);
  json["memory"] = q.state_only() ? state_json(plan.memory) : memory_json(plan.memory);
  if (q.state_only()) json["assumed"] = assumed_json(plan.assumed);
  json["pipeline_rank"] = plan.rank;
  if (q.pp() > 1 && !q.state_only()) {
    Json& ranks = json["memory_by_pipeline_rank"] = Json::array();
    for (const Memory& memory : plan.by_rank) ranks.push_back(memory_json(memory));
  }
  json["traffic"] = traffic_json(plan.traffic);
  if (q.state_only()) {  // nothing is known of time
    for (const char* key : {"time", "tokens_per_s", "model_flops", "mfu"}) json[key] = nullptr;
  } else {
    json["time"] = time_json(plan.time);
    json["time"]["interval"] = {
        {"low", plan.interval.low}, {"high", plan.interval.high}, {"basis", plan.interval.basis}};
    json["tokens_per_s"] = plan.tokens_per_s;
    json["model_flops"] = plan.model_flops;
    json["model_flops_per_s_per_gpu"] = plan.model_flops / (plan.time.step() * q.world());
    json["mfu"] = plan.mfu;
    if (plan.price > 0) json["price_per_step"] = plan.price;
    if (plan.joules > 0) json["joules_per_step"] = plan.joules;
  }
  json["fits"] = plan.fit_known ? Json(plan.fits) : Json();
  json["margin"] = whole_json(plan.margin);
  // What binds a step is not known without its time, unless it does not fit.
  json["bound"] = q.state_only() && plan.fits ? Json() : Json(name(plan.bound));
  json["remedy"] = plan.remedy;
  Json &advice = json["advice"] = Json::array(), &changes = json["changes"] = Json::array();
  for (const Advice& each : plan.advice) {
    advice.push_back(each.text);
    changes.push_back({{"flags", each.flags},
                       {"seconds_saved", q.state_only() ? Json() : Json(each.seconds)},
                       {"bytes_saved", whole_json(each.bytes)},
                       {"bytes_sent_saved", whole_json(each.sent)},
                       {"fits", each.fits}});
  }
  json["notes"] = plan.notes;
  json["question"] = question_json(q);
  return json;
}

// A value as the text that a flag would have.
std::string as_text(const std::string& key, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number()) return value.dump();
  throw UsageError(
      str(quote(key), ": got ", value.type_name(), ", wanted a number, a string, true or false"));
}

Json batch_limit_json(const BatchLimit& limit) {
  return {{"zero", limit.zero},
          {"dp", limit.dp},
          {"micro_batch", limit.micro_batch},
          {"global_batch", limit.global_batch},
          {"memory", whole_json(limit.memory)}};
}

Json model_limit_json(const ModelLimit& limit) {
  Json json = {{"zero", limit.zero},
               {"dp", limit.dp},
               {"parameters", whole_json(limit.params)},
               {"memory", whole_json(limit.memory)}};
  if (limit.model.layers > 0) json["model"] = shape_json(limit.model);
  return json;
}

}  // namespace

void read_json(Settings& settings, std::string_view object) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(object);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(str("bad JSON: ", json_error_text(error.what())));
  }
  if (!json.is_object()) {
    throw UsageError(str("got ", json.type_name(), ", wanted an object such as {\"dp\":8}"));
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_null()) settings.set(key, as_text(key, value));
  }
}

std::string numbers_json(const Plan& plan) {
  const bool sized = !plan.question.state_only();
  return one_line({{"memory", sized ? memory_json(plan.memory) : state_json(plan.memory)},
                   {"fits", plan.fit_known ? Json(plan.fits) : Json()},
                   {"time", sized ? time_json(plan.time) : Json()}});
}

std::string merged(std::string object, std::string_view more) {
  object.back() = ',';
  return object.append(more, 1);
}

std::string to_json(const Plan& plan) { return one_line(plan_json(plan)); }

std::string topology_json(const Question& q) {
  const Places on = places(q);
  const auto place = [](const GroupPlace& each) {
    return Json{{"ranks", each.ranks},
                {"in_node", each.in_node},
                {"nodes", each.nodes()},
                {"crossing", each.crossing},
                {"span", each.span}};
  };
  const auto link = [](const Link& each) {
    return Json{{"bandwidth", each.bandwidth}, {"latency", each.latency}};
  };
  return one_line({{"order", q.order},
                   {"nodes", q.nodes},
                   {"per_node", on.topology.per_node},
                   {"inside", link(on.topology.inside)},
                   {"adapter", link(on.topology.nic)},
                   {"adapters", on.topology.nics},
                   {"tp", place(on.tp)},
                   {"dp", place(on.dp)},
                   {"hop", place(on.hop)}});
}

std::string to_json(const SearchResult& result) {
  Json best = Json::array();
  for (const Plan& plan : result.best) {
    best.push_back(plan_json(plan));
    best.back()["as_good_as_the_best"] = as_good_as(plan, result.best.front());
  }
  Json ruled_out = Json::object();
  for (const auto& [reason, count] : result.ruled_out) ruled_out[reason] = count;
  return one_line({{"best", std::move(best)},
                   {"tried", result.tried},
                   {"fitting", result.fitting},
                   {"ruled_out", std::move(ruled_out)}});
}

std::string to_json(const BatchLimits& limits) {
  Json json = batch_limit_json(limits.asked);
  for (const BatchLimit& each : limits.rows) json["rows"].push_back(batch_limit_json(each));
  return one_line(json);
}

std::string to_json(const ModelLimits& limits) {
  Json json = model_limit_json(limits.asked);
  for (const ModelLimit& each : limits.rows) json["rows"].push_back(model_limit_json(each));
  return one_line(json);
}

std::string to_json(const MegatronReport& report) {
  return one_line({{"convention", "megatron"},
                   {"parameters", whole_json(report.total())},
                   {"parameters_in_blocks", whole_json(report.in_blocks)},
                   {"parameters_in_embeddings", whole_json(report.in_embeddings)},
                   {"parameters_on_most_loaded_rank", whole_json(report.most_loaded_shard)},
                   {"weight_and_optimizer_bytes", whole_json(report.bytes)},
                   {"weight_and_optimizer_mib", std::round(report.mib() * 100) / 100}});
}

std::string to_json(const Score& score) {
  Json rows = Json::array();
  for (const ScoredRow& row : score.rows) {
    rows.push_back({{"row", row.label},
                    {"measured", row.measured},
                    {"predicted", row.predicted},
                    {"error", row.error()}});
  }
  Json groups = Json::array();
  for (const ScoreGroup& group : score_groups(score)) {
    groups.push_back({{"by", group.by},
                      {"value", group.value},
                      {"rows", group.rows},
                      {"mean_error", group.mean},
                      {"bias", group.bias}});
  }
  return one_line({{"mean_error", score.mean},
                   {"median_error", score.median},
                   {"percentile_90_error", score.percentile90},
                   {"bias", score.bias},
                   {"groups", std::move(groups)},
                   {"rows", std::move(rows)}});
}

std::string error_json(std::string_view message) {
  return one_line({{"error", std::string(message)}});
}

std::string answer_line(const Settings& defaults, const Catalogue& catalogue,
                        std::string_view line) {
  try {
    Settings settings = defaults;
    read_json(settings, line);
    return to_json(make_plan(settings.question(catalogue)));
  } catch (const Error& error) {
    return error_json(error.what());
  }
}

}  // namespace tessera::planner
