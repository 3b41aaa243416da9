#include "tessera/planner/ways.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/axis_words.h"
#include "tessera/planner/places.h"
#include "tessera/planner/search.h"

namespace tessera::planner {
namespace {

// Default sequences per device, enough micro-batches to keep a pipeline busy.
constexpr int kSequencesEach = 8;

Way best_of(std::string name, const RunConfig& base, const Axes* axes, int zero,
            std::int64_t most) {
  Way way{std::move(name), "", {}};
  SearchRequest ask;
  ask.base = base;
  ask.top = 1;
  ask.most = most;
  if (axes != nullptr) {
    ask.base.axes = *axes;
    ask.base.zero = zero;
    ask.fixed.axes = PerAxis<bool>(true);
    ask.fixed.zero = true;
  }
  try {
    // A direct plan first: its error states the reason, which a search only counts.
    RunConfig least = ask.base;
    if (axes != nullptr) {
      least.micro_batch = 1;
      least.recompute = Recompute::full;
      least.grad_accum = 0;
      way.plan = plan_numbers(resolve(least));
    }
    const SearchResult found = search(ask);
    if (!found.best.empty()) {
      way.plan = found.best.front();
    } else if (axes == nullptr) {
      way.refused = "no configuration fits on these GPUs";
    }
  } catch (const UsageError& error) {
    way.refused = error.what();
  }
  return way;
}

bool runs(const Way& way) { return way.refused.empty() && way.plan.fits; }

// Names the largest part of the step that is not computation.
std::string largest_loss(const Plan& plan) {
  const StepTime& t = plan.time;
  std::vector<std::pair<double, const char*>> parts = {{t.bubble, "bubble"},
                                                       {t.optimizer, "the optimizer"}};
  for (const Axis axis : kAllAxes) parts.emplace_back(t.comm[axis], words_of(axis).loss);
  const auto most = std::max_element(
      parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return str(percent(most->first / t.step()), " is ", most->second);
}

// Returns a warning for a recommended configuration, or "".
std::string across_hosts(const RunConfig& q) {
  for (const Axis axis : kInLayerAxes) {
    if (places(q).along[axis].nodes() > 1) return str(" (", axis_name(axis), " goes across hosts)");
  }
  return "";
}

std::string conclusion_text(const std::vector<Way>& ways) {
  const Way* fastest = nullptr;
  std::string text;
  for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
    const Way& way = ways[i];
    if (!way.refused.empty()) continue;
    if (!way.plan.fits) {
      text += str(way.name, " needs ", of_usable(way.plan.needed(), way.plan.question),
                  " even with full recomputation and micro-batch 1, so it cannot run. ");
    } else if (fastest == nullptr || way.plan.time.step() < fastest->plan.time.step()) {
      fastest = &way;
    }
  }
  if (fastest == nullptr) {
    text += "No single axis fits. ";
  } else {
    const Plan& best = fastest->plan;
    text += str("Of single axes, ", fastest->name, across_hosts(best.question), " is fastest, ",
                format_time(best.time.step()), " a step. ");
    for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
      const Way& way = ways[i];
      if (!runs(way) || &way == fastest) continue;
      text +=
          str(way.name, " takes ", fixed(way.plan.time.step() / best.time.step(), 2),
              " times as long, of which ", largest_loss(way.plan), "; ",
              size(way.plan.traffic.total()), " sent against ", size(best.traffic.total()), ". ");
    }
  }
  const Way& mix = ways.back();
  if (!runs(mix)) return text + "No mix fits either: use more GPUs, or GPUs with more memory.";
  const RunConfig& q = mix.plan.question;
  const std::string name = str(q.axes.words(" · "), ", ZeRO ", q.zero, across_hosts(q));
  if (fastest == nullptr) return text + str("The best mix is ", name, ".");
  const double gain = fastest->plan.time.step() / mix.plan.time.step();
  if (gain < 1.005) return text + "No mix is faster.";
  return text + str("The best mix, ", name, ", is ", fixed(gain, 2), " times as fast.");
}

}  // namespace

WaysCompared compare_ways(const RunConfig& question, std::int64_t most) {
  if (question.state_only()) {
    throw UsageError(Flag("params"),
                     "does not determine activations and step time. Give --model, or --layers, "
                     "--hidden and --heads");
  }
  RunConfig base = question;
  base.axes.check_replicas();
  const std::int64_t given = std::max(base.axes.world(), base.axes.model_ranks());  // dp may be 0
  if (base.gpus == 0) {
    base.gpus = given > 1 ? static_cast<int>(std::min<std::int64_t>(given, 1 << 20))
                          : std::max(1, base.hardware.per_node);
  }
  if (base.gpus < 2)
    throw UsageError("--gpus 1: must be at least 2 to compare kinds of parallelism", "gpus");
  const int n = base.gpus;
  base.axes = Axes{{Axis::dp_shard, 0}};
  base.zero = 0;
  if (base.global_batch == 0) base.global_batch = std::int64_t{kSequencesEach} * n;
  base.grad_accum = base.micro_batch = 0;
  WaysCompared all;
  for (const Axis axis : kPrintedAxes) {
    if (axis == Axis::dp_replicate) continue;  // without shards it is plain data parallelism
    if (!multiplies_ranks(axis)) {
      const int ep = expert_rank_counts(base.model, {{Axis::dp_shard, n}}).back();
      const Axes cut = {{Axis::dp_shard, n}, {axis, ep}};
      const std::string name = str("dp ", n, ", ", axis_name(axis), " ", ep);
      if (ep > 1) all.ways.push_back(best_of(name, base, &cut, 0, most));
      continue;
    }
    const Axes only = {{axis, n}};
    const std::string name = str(axis_name(axis), " ", n);
    all.ways.push_back(best_of(name, base, &only, 0, most));
    if (axis == Axis::dp_shard)
      all.ways.push_back(best_of(name + ", ZeRO-3", base, &only, 3, most));
  }
  all.ways.push_back(best_of("best mix", base, nullptr, 0, most));
  all.conclusion = conclusion_text(all.ways);
  return all;
}

Json tree_of(const WaysCompared& compared) {
  Json rows = Json::array();
  for (const Way& way : compared.ways) {
    Json& row = rows.emplace_back(Json{{"name", way.name}});
    if (!way.refused.empty()) {
      row["error"] = way.refused;
    } else {
      row["plan"] = tree_of(way.plan, /*advised=*/false);
    }
  }
  return {{"ways", std::move(rows)}, {"conclusion", compared.conclusion}};
}

std::string to_json(const WaysCompared& compared) { return one_line(tree_of(compared)); }

std::string ways_svg(const WaysCompared& compared) {
  const Plan* any = nullptr;
  double most = 0, slowest = 0;
  for (const Way& way : compared.ways) {
    if (!way.refused.empty()) continue;
    any = &way.plan;
    most = std::max(most, way.plan.needed());
    slowest = std::max(slowest, way.plan.time.step());
  }
  std::string title = "Kinds of parallelism on several GPUs";
  if (any != nullptr) {
    const RunConfig& q = any->question;
    title =
        str(q.model.name.empty() ? format_count(q.model.params()) + " parameters" : q.model.name,
            " on ", q.world(), " × ", q.hardware.name, ", global batch ", q.global_batch);
  }
  constexpr double kMemory = 140, kWide = 250, kTime = 520;
  Svg svg(860, 110 + 40 * static_cast<double>(compared.ways.size()), title);
  svg.text(kMemory, 58, "memory per rank");
  svg.text(kTime, 58, "step time");
  double y = 70;
  for (const Way& way : compared.ways) {
    svg.text(20, y + 18, way.name);
    if (!way.refused.empty()) {
      svg.text(kMemory, y + 18, "not possible", Svg::Anchor::start, colors::kLimit);
      y += 40;
      continue;
    }
    const Memory& m = way.plan.memory;
    double x = kMemory;
    for (const auto& [bytes, color] : {std::pair{m.params, colors::kParams},
                                       {m.grads, colors::kGrads},
                                       {m.optimizer, colors::kOptimizer},
                                       {m.activations, colors::kActivations},
                                       {m.buffers + m.temporary - m.not_at_once, colors::kRest}}) {
      const double wide = most > 0 ? kWide * bytes / most : 0;
      svg.box(x, y, wide, 26, color, size(bytes));
      x += std::max(0.0, wide);
    }
    svg.text(x + 6, y + 18, size(way.plan.needed()), Svg::Anchor::start,
             way.plan.fits ? "#222222" : colors::kLimit);
    if (way.plan.fits) {
      const double wide = slowest > 0 ? kWide * way.plan.time.step() / slowest : 0;
      svg.box(kTime, y, wide, 26, colors::kTime);
      svg.text(kTime + wide + 6, y + 18, format_time(way.plan.time.step()));
    } else {
      svg.text(kTime, y + 18, "does not fit", Svg::Anchor::start, colors::kLimit);
    }
    y += 40;
  }
  double x = svg.legend(20, y + 22, colors::kParams, "params");
  x = svg.legend(x, y + 22, colors::kGrads, "grads");
  x = svg.legend(x, y + 22, colors::kOptimizer, "optimizer");
  x = svg.legend(x, y + 22, colors::kActivations, "activations");
  svg.legend(x, y + 22, colors::kRest, "buffers, temporary");
  return svg.finish();
}

}  // namespace tessera::planner
