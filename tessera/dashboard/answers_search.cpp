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
std::string train_command(const planner::RunConfig& q) {
  std::string text = "tessera train";
  const bool resized = std::max({q.layers, q.hidden, q.heads, q.kv_heads, q.ffn, q.vocab}) > 0;
  if (!q.model.name.empty()) {
    text += str(" --model ", shell_word(q.model.name));
  } else if (q.has("model")) {
    text += str(" --model ", shell_word(q.model_name));
  }
  if (resized) {
    text +=
        str(" --layers ", q.model.layers, " --hidden ", q.model.hidden, " --heads ", q.model.heads,
            " --kv-heads ", q.model.kv_heads, " --ffn ", q.model.ffn, " --vocab ", q.model.vocab);
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
  if (q.cp() > 1) text += str(" --cp-kind ", name(q.cp_kind));
  if (q.pipelined()) text += str(" --schedule ", q.schedule);
  if (q.pipelined() && q.chunks > 1) text += str(" --chunks ", q.chunks);
  return text;
}

// Returns the command for each launcher that starts the ranks on several hosts. Words in capitals
// are placeholders. Empty for one host.
Json launch_commands(const planner::RunConfig& q) {
  Json list = Json::array();
  if (q.nodes < 2) return list;
  const std::string train = train_command(q) + " --data DATA";
  const auto add = [&](const char* launcher, const std::string& words) {
    list.push_back({{"launcher", launcher}, {"command", words + " " + train}});
  };
  add("torchrun", str("torchrun --nnodes ", q.nodes, " --nproc-per-node ", q.per_node,
                      " --rdzv-backend c10d --rdzv-endpoint HOST0:29500 --no-python"));
  add("srun", str("MASTER_ADDR=HOST0 MASTER_PORT=29500 srun --nodes ", q.nodes,
                  " --ntasks-per-node ", q.per_node));
  add("tessera run", str("tessera run -n ", q.per_node, " --nodes ", q.nodes,
                         " --node-rank NODE --master-addr HOST0 --secret-file SECRET --"));
  return list;
}

// Returns the settings of a request, or flags of a command, that plan exactly `found`: those of the
// search and the ones it chose. dp and grad_accum stand for gpus, nodes and global_batch, so that a
// view can change them. Settings at their default are omitted if the search did not ask for them.
Json settings_of(const planner::RunConfig& asked, const planner::RunConfig& found) {
  const std::set<std::string> derived = {"gpus", "nodes", "global-batch"};
  const std::set<std::string> always = {"model", "hardware", "layout",      "dp",        "tp",
                                        "pp",    "zero",     "micro-batch", "grad-accum"};
  std::set<std::string> chosen = {"sequence-parallel", "recompute", "axis-order"};
  for (const Axis axis : kAllAxes) {
    std::string flag(axis_name(axis));
    std::replace(flag.begin(), flag.end(), '_', '-');
    chosen.insert(flag);
  }
  const std::set<std::string> of_pipeline = {"schedule", "chunks"};
  const planner::RunConfig usual = planner::RunConfig::for_plan();
  Json json = Json::object();
  for (const planner::Field& field : planner::fields(planner::Command::plan)) {
    if (field.alias || derived.count(field.name) > 0) continue;
    const std::string text = planner::get(found, field);
    // A model given by its sizes has no name.
    if (field.name == "model" && found.model.name.empty() && !asked.has("model")) continue;
    const bool needed = asked.has(field.name) || always.count(field.name) > 0 ||
                        (chosen.count(field.name) > 0 && text != planner::get(usual, field)) ||
                        (of_pipeline.count(field.name) > 0 && found.pipelined()) ||
                        (field.name == "cp-kind" && found.cp() > 1);
    if (!needed) continue;
    std::string key = field.name;
    std::replace(key.begin(), key.end(), '-', '_');
    json[key] = text;
  }
  return json;
}

void check_devices(const planner::RunConfig& question, const Limits& limits) {
  const std::int64_t asked = std::max<std::int64_t>(
      {question.gpus, question.axes.world(),
       static_cast<std::int64_t>(question.nodes) * std::max(1, question.per_node)});
  if (asked > limits.search_gpus) {
    throw UsageError(Flag("gpus"), str("got ", asked, "; must be at most ", limits.search_gpus,
                                       " on this page. tessera plan --search accepts more."));
  }
}

}  // namespace

Json search_answer(const Knowledge& known, Ask& ask) {
  const auto top = ask.integer("top", 50, 1, 500);
  const planner::RunConfig settings = ask.settings();
  check_devices(planner::look_up(settings, known.catalog), known.limits);
  planner::SearchRequest question = planner::search_request(settings, known.catalog);
  question.top = static_cast<int>(top);
  question.most = known.limits.search_ways;
  const planner::SearchResult result = planner::search(question, known.search_progress);
  Json json = planner::tree_of(result);
  const auto add = [&](Json& to, const planner::Plan& plan) {
    to["train_command"] = train_command(plan.question);
    to["launch"] = launch_commands(plan.question);
    to["settings"] = settings_of(settings, plan.question);
  };
  for (std::size_t i = 0; i < result.best.size(); ++i) add(json["best"][i], result.best[i]);
  if (result.closest) add(json["closest"], *result.closest);
  if (result.nearest_fit) add(json["nearest_fit"], *result.nearest_fit);
  json["command"] = ask.command("plan --search");
  return json;
}

Json compare_answer(const Knowledge& known, Ask& ask) {
  if (!ask.has("layers") && !ask.has("hidden") && !ask.has("params")) {
    ask.otherwise("model", "llama2-7b");
  }
  for (const char* own : {"dp", "tp", "cp", "pp", "zero", "grad_accum", "micro_batch"}) {
    if (ask.has(own)) throw UsageError(str(quote(own), " is chosen for each way; use gpus"), own);
  }
  const planner::RunConfig question = planner::look_up(ask.settings(), known.catalog);
  check_devices(question, known.limits);
  Json json = planner::tree_of(planner::compare_ways(question, known.limits.search_ways));
  json["command"] = ask.command("explain parallel");
  return json;
}

Json traffic_answer(const Knowledge& known, Ask& ask) {
  if (!ask.has("model") && !ask.has("layers") && !ask.has("hidden")) ask.otherwise("params", "7B");
  if (!ask.has("gpus") && !ask.has("nodes")) ask.otherwise("dp", "8");
  const Json whole =
      planner::tree_of(planner::compare_stages(ask.question(known.catalog, known.limits)));
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
  planner::CollectiveInput a;
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
  Json json = Json::parse(planner::to_json(a, planner::trace_collective(a)));
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
