// Answers of the search, the comparison of ways to train, and traffic.

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"
#include "tessera/planner/collective.h"
#include "tessera/planner/json.h"
#include "tessera/planner/stages.h"
#include "tessera/planner/ways.h"

namespace tessera::dashboard {
namespace {

// Returns the command that trains according to this plan.
std::string train_command(const planner::Question& q) {
  std::string text = "tessera train";
  if (!q.model.name.empty()) {
    text += str(" --model ", shell_word(q.model.name));
  } else {
    text += str(" --layers ", q.model.layers, " --hidden ", q.model.hidden, " --heads ",
                q.model.heads, " --vocab ", q.model.vocab);
  }
  if (!q.hardware.cpu) text += " --device cuda";
  for (const Axis axis : kPrintedAxes) {
    const int size = q.axes.given(axis);
    if (size > 1 || axis == Axis::dp_shard) text += str(" ", axis_flag(axis), " ", size);
  }
  text += str(" --zero ", q.zero, " --layout ", q.layout.name, " --seq ", q.seq, " --micro-batch ",
              q.micro_batch, " --grad-accum ", q.grad_accum);
  if (q.recompute != Recompute::none) text += str(" --recompute ", name(q.recompute));
  if (q.sequence_parallel) text += " --sequence-parallel";
  if (q.pp() > 1) text += str(" --schedule ", q.schedule);
  if (q.pp() > 1 && q.chunks > 1) text += str(" --chunks ", q.chunks);
  return text;
}

void check_devices(const planner::Question& question, const Limits& limits) {
  const std::int64_t asked = std::max<std::int64_t>(
      {question.gpus, question.axes.world(),
       static_cast<std::int64_t>(question.nodes) * std::max(1, question.per_node)});
  if (asked > limits.search_gpus) {
    throw UsageError(str("--gpus: got ", asked, "; must be at most ", limits.search_gpus,
                         " on this page. tessera plan --search accepts more."));
  }
}

}  // namespace

Json search_answer(const Knowledge& known, Ask& ask) {
  const auto top = ask.integer("top", 50, 1, 500);
  const planner::Settings settings = ask.settings();
  check_devices(settings.question(known.catalogue), known.limits);
  planner::SearchQuestion question = planner::search_question(settings, known.catalogue);
  question.top = static_cast<int>(top);
  question.most = known.limits.search_ways;
  const planner::SearchResult result = planner::search(question);
  Json json = Json::parse(planner::to_json(result));
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    json["best"][i]["train_command"] = train_command(result.best[i].question);
  }
  json["command"] = ask.command("plan --search");
  return json;
}

Json compare_answer(const Knowledge& known, Ask& ask) {
  if (!ask.has("layers") && !ask.has("hidden") && !ask.has("params")) {
    ask.otherwise("model", "llama2-7b");
  }
  for (const char* own : {"dp", "tp", "pp", "zero", "grad_accum", "micro_batch"}) {
    if (ask.has(own)) throw UsageError(str("--", own, ": is chosen for each way; use gpus"));
  }
  const planner::Question question = ask.settings().question(known.catalogue);
  check_devices(question, known.limits);
  Json json =
      Json::parse(planner::to_json(planner::compare_ways(question, known.limits.search_ways)));
  json["command"] = ask.command("explain parallel");
  return json;
}

Json traffic_answer(const Knowledge& known, Ask& ask) {
  if (!ask.has("model") && !ask.has("layers") && !ask.has("hidden")) ask.otherwise("params", "7B");
  if (!ask.has("gpus") && !ask.has("nodes")) ask.otherwise("dp", "8");
  const Json whole = Json::parse(
      planner::to_json(planner::compare_stages(ask.question(known.catalogue, known.limits))));
  Json stages = Json::array();
  for (const Json& stage : whole["stages"]) {
    stages.push_back({{"stage", stage["stage"]}, {"name", stage["name"]}, {"sent", stage["sent"]}});
  }
  return {{"parameters", whole["parameters"]},
          {"dp", whole["dp"]},
          {"stages", std::move(stages)},
          {"command", ask.command("explain zero")}};
}

Json collective_answer(const Knowledge&, Ask& ask) {
  planner::CollectiveAsk a;
  a.algorithm = ask.word("algorithm", "ring", planner::collective_algorithms());
  a.ranks = static_cast<int>(ask.integer("ranks", 4, 1, 16));
  a.per_node = static_cast<int>(ask.integer("per_node", 8, 1, 1024));
  const double elements = ask.number("elements", 0, 0, 1e15);
  a.bytes = std::floor(ask.number("bytes", elements > 0 ? 4 * elements : 200e6, 1, 1e15));
  a.bandwidth = ask.number("bandwidth", 100e9, 1, 1e15);
  a.latency = ask.number("latency", 0, 0, 3600);
  a.between_bandwidth = ask.number("between_bandwidth", a.bandwidth, 1, 1e15);
  a.between_latency = ask.number("between_latency", a.latency, 0, 3600);
  ask.nothing_else();
  Json json = Json::parse(planner::to_json(a, planner::tell_collective(a)));
  std::string command =
      str("tessera explain collective --algorithm ", a.algorithm, " --ranks ", a.ranks, " --bytes ",
          static_cast<std::int64_t>(a.bytes), " --bandwidth ", rate_word(a.bandwidth));
  if (a.latency > 0) command += str(" --latency ", exact_word(a.latency));
  if (a.algorithm == "two-level" || a.ranks > a.per_node) {
    command += str(" --per-node ", a.per_node);
  }
  if (a.ranks > a.per_node) {
    command += str(" --between-bandwidth ", rate_word(a.between_bandwidth), " --between-latency ",
                   exact_word(a.between_latency));
  }
  json["command"] = std::move(command);
  return json;
}

}  // namespace tessera::dashboard
