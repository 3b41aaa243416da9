#include "tessera/planner/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"
#include "tessera/planner/places.h"

namespace tessera::planner {
void read_json(RunConfig& settings, std::string_view object) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(object);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(str("bad JSON: ", json_error_text(error.what())));
  }
  if (!json.is_object()) {
    throw UsageError(str("JSON ", json.type_name(), ": must be an object such as {\"dp\":8}"));
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_null()) settings.set(key, setting_text(key, value));
  }
}

std::string topology_json(const RunConfig& q) {
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
  Json json = {{"order", q.order},
               {"nodes", q.nodes},
               {"per_node", on.topology.per_node},
               {"inside", link(on.topology.inside)},
               {"adapter", link(on.topology.nic)},
               {"adapters", on.topology.nics},
               {"tp", place(on.along[Axis::tp])},
               {"cp", place(on.along[Axis::cp])},
               {"dp", place(on.along[Axis::dp_shard])},
               {"dp_replicate", place(on.along[Axis::dp_replicate])},
               {"hop", place(on.hop)}};
  if (q.ep() > 1) {
    json["ep"] = place(on.along[Axis::ep]);
    json["same_experts"] = place(on.expert_shard);
  }
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

std::string plan_json(const RunConfig& settings, const Catalog& catalog) {
  return to_json(make_plan(look_up(settings, catalog)));
}

std::string plan_json(std::string_view object, const Catalog& catalog) {
  RunConfig settings = RunConfig::for_plan();
  read_json(settings, object);
  return plan_json(settings, catalog);
}

std::string answer_line(const RunConfig& defaults, const Catalog& catalog, std::string_view line) {
  try {
    RunConfig settings = defaults;
    read_json(settings, line);
    return plan_json(settings, catalog);
  } catch (const Error& error) {
    return error_json(error.what());
  }
}

}  // namespace tessera::planner
