#include "tessera/planner/ways.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/json.h"
#include "tessera/planner/places.h"
#include "tessera/planner/remedy.h"
#include "tessera/planner/search.h"

namespace tessera::planner {
namespace {

// Enough micro-batches for a pipeline to be busy, if nobody says how many.
constexpr int kSequencesEach = 8;

Way best_of(std::string name, const Question& base, const Axes* axes, int zero, std::int64_t most) {
  Way way{std::move(name), "", {}};
  SearchQuestion ask;
  ask.base = base;
  ask.top = 1;
  ask.most = most;
  if (axes != nullptr) {
    ask.base.axes = *axes;
    ask.base.zero = zero;
    ask.fixed.tp = ask.fixed.pp = ask.fixed.zero = ask.fixed.replicas = true;
  }
  try {
    // So that what cannot be says why, which a search only counts.
    Question least = ask.base;
    if (axes != nullptr) {
      least.micro_batch = 1;
      least.recompute = Recompute::full;
      least.grad_accum = 0;
      way.plan = plan_numbers(settle(least));
    }
    const SearchResult found = search(ask);
    if (!found.best.empty()) {
      way.plan = found.best.front();
    } else if (axes == nullptr) {
      way.refused = "nothing fits on these GPUs";
    }
  } catch (const UsageError& error) {
    way.refused = error.what();
  }
  return way;
}

bool runs(const Way& way) { return way.refused.empty() && way.plan.fits; }

// What of its step is not arithmetic, the largest part first.
std::string largest_loss(const Plan& plan) {
  const StepTime& t = plan.time;
  const std::pair<double, const char*> parts[] = {
      {t.comm[Axis::tp], "waiting for tensor-parallel sums"},
      {t.comm[Axis::dp_shard], "waiting for gradients and parameters"},
      {t.comm[Axis::dp_replicate], "waiting for sums over replicas"},
      {t.bubble, "bubble"},
      {t.comm[Axis::pp], "hops between stages"},
      {t.optimizer, "the optimizer"}};
  const auto* most = std::max_element(std::begin(parts), std::end(parts));
  return str(percent(most->first / t.step()), " is ", most->second);
}

// Said of whatever is recommended.
std::string across_hosts(const Question& q) {
  return places(q).along[Axis::tp].nodes() > 1 ? " (tp goes across hosts)" : "";
}

std::string concluded(const std::vector<Way>& ways) {
  const Way* fastest = nullptr;
  std::string text;
  for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
    const Way& way = ways[i];
    if (!way.refused.empty()) continue;
    if (!way.plan.fits) {
      text += str(way.name, " needs ", of_usable(way.plan.needed(), way.plan.question),
                  " even recomputing everything, one sequence at a time, and cannot run. ");
    } else if (fastest == nullptr || way.plan.time.step() < fastest->plan.time.step()) {
      fastest = &way;
    }
  }
  if (fastest == nullptr) {
    text += "No way alone fits. ";
  } else {
    const Plan& best = fastest->plan;
    text += str("Of one axis alone ", fastest->name, across_hosts(best.question), " is fastest, ",
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
  if (!runs(mix)) return text + "No mix fits either: more GPUs, or more memory on each.";
  const Question& q = mix.plan.question;
  const std::string name = str(q.axes.words(" · "), ", ZeRO ", q.zero, across_hosts(q));
  if (fastest == nullptr) return text + str("The best mix is ", name, ".");
  const double gain = fastest->plan.time.step() / mix.plan.time.step();
  if (gain < 1.005) return text + "No mix is faster.";
  return text + str("The best mix, ", name, ", is ", fixed(gain, 2), " times as fast.");
}

}  // namespace

WaysCompared compare_ways(const Question& question, std::int64_t most) {
  if (question.state_only()) {
    throw UsageError(
        "--params: says nothing of activations and time; wanted --model, or --layers --hidden "
        "--heads");
  }
  Question base = question;
  const std::int64_t cut = std::int64_t{std::max(1, base.dp())} * base.tp() * base.pp();
  if (base.gpus == 0)
    base.gpus = cut > 1 ? static_cast<int>(std::min<std::int64_t>(cut, 1 << 20))
                        : std::max(1, base.hardware.per_node);
  if (base.gpus < 2) throw UsageError("--gpus: got 1, wanted 2 or more to compare ways");
  const int n = base.gpus;
  base.axes = Axes{{Axis::dp_shard, 0}};
  base.zero = 0;
  if (base.global_batch == 0) base.global_batch = std::int64_t{kSequencesEach} * n;
  base.grad_accum = base.micro_batch = 0;
  WaysCompared all;
  const Axes dp = {{Axis::dp_shard, n}}, tp = {{Axis::tp, n}}, pp = {{Axis::pp, n}};
  all.ways.push_back(best_of(str("dp ", n), base, &dp, 0, most));
  all.ways.push_back(best_of(str("dp ", n, ", ZeRO-3"), base, &dp, 3, most));
  all.ways.push_back(best_of(str("tp ", n), base, &tp, 0, most));
  all.ways.push_back(best_of(str("pp ", n), base, &pp, 0, most));
  all.ways.push_back(best_of("best mix", base, nullptr, 0, most));
  all.conclusion = concluded(all.ways);
  return all;
}

std::string to_json(const WaysCompared& compared) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const Way& way : compared.ways) {
    Json row = {{"name", way.name}};
    if (!way.refused.empty()) {
      row["error"] = way.refused;
    } else {
      row["plan"] = Json::parse(to_json(way.plan));
      for (const char* advised : {"remedy", "advice", "changes", "notes"})
        row["plan"].erase(advised);
    }
    rows.push_back(std::move(row));
  }
  const Json json = {{"ways", std::move(rows)}, {"conclusion", compared.conclusion}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ways_svg(const WaysCompared& compared) {
  const Plan* any = nullptr;
  double most = 0, slowest = 0;
  for (const Way& way : compared.ways) {
    if (!way.refused.empty()) continue;
    any = &way.plan;
    most = std::max(most, way.plan.needed());
    slowest = std::max(slowest, way.plan.time.step());
  }
  std::string title = "Ways to train on several GPUs";
  if (any != nullptr) {
    const Question& q = any->question;
    title =
        str(q.model.name.empty() ? format_count(q.model.params()) + " parameters" : q.model.name,
            " on ", q.world(), " × ", q.hardware.name, ", global batch ", q.global_batch);
  }
  constexpr double kMemory = 140, kWide = 250, kTime = 520;
  Svg svg(860, 110 + 40 * static_cast<double>(compared.ways.size()), title);
  svg.text(kMemory, 58, "memory of a rank");
  svg.text(kTime, 58, "time of a step");
  double y = 70;
  for (const Way& way : compared.ways) {
    svg.text(20, y + 18, way.name);
    if (!way.refused.empty()) {
      svg.text(kMemory, y + 18, "cannot be", Svg::Anchor::start, colours::kLimit);
      y += 40;
      continue;
    }
    const Memory& m = way.plan.memory;
    double x = kMemory;
    for (const auto& [bytes, colour] :
         {std::pair{m.params, colours::kParams},
          {m.grads, colours::kGrads},
          {m.optimizer, colours::kOptimizer},
          {m.activations, colours::kActivations},
          {m.buffers + m.temporary - m.not_at_once, colours::kRest}}) {
      const double wide = most > 0 ? kWide * bytes / most : 0;
      svg.box(x, y, wide, 26, colour, size(bytes));
      x += std::max(0.0, wide);
    }
    svg.text(x + 6, y + 18, size(way.plan.needed()), Svg::Anchor::start,
             way.plan.fits ? "#222222" : colours::kLimit);
    if (way.plan.fits) {
      const double wide = slowest > 0 ? kWide * way.plan.time.step() / slowest : 0;
      svg.box(kTime, y, wide, 26, colours::kTime);
      svg.text(kTime + wide + 6, y + 18, format_time(way.plan.time.step()));
    } else {
      svg.text(kTime, y + 18, "does not fit", Svg::Anchor::start, colours::kLimit);
    }
    y += 40;
  }
  double x = svg.legend(20, y + 22, colours::kParams, "params");
  x = svg.legend(x, y + 22, colours::kGrads, "grads");
  x = svg.legend(x, y + 22, colours::kOptimizer, "optimizer");
  x = svg.legend(x, y + 22, colours::kActivations, "activations");
  svg.legend(x, y + 22, colours::kRest, "buffers, temporary");
  return svg.finish();
}

}  // namespace tessera::planner
