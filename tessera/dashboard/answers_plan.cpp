// Answers of the planner, from the same functions that the commands use.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/dashboard/api.h"
#include "tessera/planner/json.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/stages.h"
#include "tessera/schedule/schedule.h"
#include "tessera/version.h"

namespace tessera::dashboard {
namespace {

Json hardware_json(const planner::Hardware& h) {
  return {{"name", h.name},
          {"memory", h.memory},
          {"usable", planner::usable_memory(h)},
          {"per_node", h.per_node},
          {"peak_16bit", h.peak_16bit},
          {"memory_bandwidth", h.memory_bandwidth},
          {"inside", {{"bandwidth", h.inside.bandwidth}, {"latency", h.inside.latency}}},
          {"between", {{"bandwidth", h.between.bandwidth}, {"latency", h.between.latency}}},
          {"cpu", h.cpu},
          {"watts", h.watts},
          {"price_per_hour", h.price_per_hour}};
}

Json setting_json(const planner::Field& field) {
  std::string key = field.name;
  std::replace(key.begin(), key.end(), '-', '_');
  Json json = {{"name", key},
               {"flag", "--" + field.name},
               {"group", field.group},
               {"type", field.type_name()},
               {"default", field.shown_default(planner::Command::plan)},
               {"choices", field.choices},
               {"help", field.help}};
  if (field.is_flag()) json["type"] = "BOOL";
  if (field.least < field.most) json["least"] = field.least, json["most"] = field.most;
  return json;
}

// Returns the smallest dp with which the stage fits, with everything else unchanged; nullopt if
// none does.
std::optional<int> fits_from(planner::RunConfig q, int stage, int most) {
  const double usable = planner::usable_memory(q.hardware);
  q = q.at_stage(stage);
  q.gpus = q.nodes = 0;  // derived from dp
  // dp is a multiple of this: whole replicas, and in each whole blocks of expert parallelism.
  const int unit = q.replicas() * (q.ep() / std::gcd(q.ep(), q.cp()));
  most = std::max(1, most / unit);
  const auto fits = [&](int units) {
    q.axes.set_dp(units * unit);
    q.global_batch = q.micro_batch * q.grad_accum * units * unit;
    return planner::needed_memory(q) <= usable;
  };
  if (fits(1)) return unit;
  int least = 1, high = 1;  // does not fit; may fit
  while (high < most && !fits(high)) least = high, high = std::min(most, 2 * high);
  if (!fits(high)) return std::nullopt;
  while (high - least > 1) {
    const int middle = least + (high - least) / 2;
    (fits(middle) ? high : least) = middle;
  }
  return high * unit;
}

// Returns the formula of the state with its numbers.
std::string stage_formula(const planner::StageAnswer& s) {
  const planner::RunConfig& q = s.plan.question;
  const auto product = [&](double params, int shards) {
    const auto term = [&](double bytes, bool cut) {
      return cut && shards > 1 ? str(bytes, "/", shards) : str(bytes);
    };
    const std::string optimizer = term(q.layout.optimizer(), s.sharded.optimizer);
    return str(format_count(std::llround(std::min(params, 9e18))), " · (",
               term(q.layout.param, s.sharded.params), " + ", term(q.layout.grad, s.sharded.grads),
               q.offloads_optimizer() ? "" : str(" + ", optimizer), ") B");
  };
  const planner::Memory& m = s.plan.memory;
  const double state = m.params + m.grads + m.optimizer;
  // With ep a rank has a part of the experts, sharded over the ranks with the same part.
  double experts = 0;
  if (q.ep() > 1) {
    const auto rank = static_cast<std::size_t>(s.plan.rank);
    experts = planner::experts_on_rank(q, planner::chunk_layers(q).at(rank));
  }
  return str(product(s.plan.on_a_rank - experts, q.shards()),
             experts > 0 ? str(" + experts ", product(experts, q.expert_shards())) : "", " = ",
             format_bytes(std::llround(std::min(state, 9e18))));
}

}  // namespace

Json about_answer(const Knowledge& known, Ask& ask) {
  ask.nothing_else();
  Json models = Json::array(), hardware = Json::array(), settings = Json::array();
  for (const ModelShape& shape : model_shapes()) models.push_back(model_json(shape));
  for (const planner::Hardware& each : known.catalog.all()) {
    hardware.push_back(hardware_json(each));
  }
  for (const planner::Field& field : planner::fields(planner::Command::plan)) {
    settings.push_back(setting_json(field));
  }
  Json axes = Json::array();
  for (const Axis axis : kPrintedAxes) axes.push_back(axis_name(axis));
  Json layouts = Json::array();
  for (const StateLayout& layout : state_layouts()) {
    layouts.push_back({{"name", layout.name},
                       {"param", layout.param},
                       {"grad", layout.grad},
                       {"optimizer", planner::whole_json(layout.optimizer())},
                       {"total", planner::whole_json(layout.total())}});
  }
  return {{"version", TESSERA_VERSION},
          {"models", std::move(models)},
          {"hardware", std::move(hardware)},
          {"layouts", std::move(layouts)},
          {"schedules", schedule::names()},
          {"axes", std::move(axes)},
          {"settings", std::move(settings)},
          {"limits",
           {{"ranks", known.limits.ranks},
            {"slots", known.limits.slots},
            {"search_gpus", known.limits.search_gpus}}}};
}

Json plan_answer(const Knowledge& known, Ask& ask) {
  Json json = planner::tree_of(planner::advised_plan(ask.question(known.catalog, known.limits)));
  json["command"] = ask.command("plan");
  return json;
}

Json zero_answer(const Knowledge& known, Ask& ask) {
  const bool modelled = ask.has("model") || ask.has("layers") || ask.has("hidden");
  if (!modelled) ask.otherwise("params", "7B");
  if (!ask.has("gpus") && !ask.has("nodes")) ask.otherwise("dp", "8");
  // Stage 0 does not support replicas. The command compares all stages regardless of --zero.
  const bool hybrid = ask.has("dp_replicate") || ask.has("dp-replicate");
  if (hybrid) ask.otherwise("zero", "3");
  const planner::RunConfig resolved = ask.question(known.catalog, known.limits);
  const auto stages = planner::compare_stages(resolved);
  Json json = planner::tree_of(stages);
  json["capacity"] = planner::usable_memory(resolved.hardware);
  json["capacity_total"] = resolved.hardware.memory;
  json["hardware"] = resolved.hardware.name;
  json["seq"] = resolved.state_only() ? Json() : Json(resolved.seq);
  json["layout_bytes"] = {{"param", resolved.layout.param},
                          {"grad", resolved.layout.grad},
                          {"optimizer", resolved.layout.optimizer()}};
  Json &fits_from_dp = json["fits_from_dp"], formulas = Json::array();
  for (const planner::StageAnswer& s : stages) {
    const std::optional<int> least = fits_from(resolved, s.stage, 1 << 16);
    fits_from_dp[std::to_string(s.stage)] = least ? Json(*least) : Json();
    formulas.push_back({{"stage", s.stage}, {"text", stage_formula(s)}});
  }
  json["formula"] = std::move(formulas);
  const std::set<std::string> without =
      hybrid ? std::set<std::string>{"zero"} : std::set<std::string>{};
  json["command"] = ask.command("explain zero", without);
  return json;
}

}  // namespace tessera::dashboard
