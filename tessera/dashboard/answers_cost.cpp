// Answers about a whole training and about one step: its cost, and its memory over time.

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/dashboard/api.h"
#include "tessera/simulator/memory_over_step.h"

namespace tessera::dashboard {
namespace {

// Assumed where neither the request nor the entry of the hardware has a value.
constexpr double kAssumedWatts = 1000;
constexpr double kAssumedPrice = 2;
constexpr std::size_t kMostCosts = 64;

// Returns a list of positive numbers; a null is NaN.
std::vector<double> numbers(Ask& ask, const std::string& key) {
  std::vector<double> all;
  for (const Json& each : ask.list(key, kMostCosts)) {
    const double value = each.is_number() ? each.get<double>() : std::nan("");
    if (!each.is_null() && !(value > 0 && value <= 1e18)) {
      throw UsageError(Flag(key), "must be a list of numbers above 0, or null");
    }
    all.push_back(value);
  }
  return all;
}

// A value of the request, of the entry, or the assumed one, with its origin.
struct Assumption {
  double value = 0;
  const char* basis = "";
};
Assumption assumption(Ask& ask, const std::string& key, double most, double entry, double assumed) {
  const double given = ask.number(key, -1, 0, most);
  if (given >= 0) return {given, "given"};
  if (entry > 0) return {entry, "hardware"};
  return {assumed, "assumed"};
}

}  // namespace

Json cost_answer(const Knowledge& known, Ask& ask) {
  const double tokens = ask.number("tokens", 1e12, 1, 1e18);
  std::vector<std::string> names;
  for (const planner::Hardware& each : known.catalog.all()) names.push_back(each.name);
  const planner::Hardware& hardware = known.catalog.find(ask.word("hardware", "h100", names));
  const Assumption watts = assumption(ask, "watts", 1e6, hardware.watts, kAssumedWatts);
  const Assumption price =
      assumption(ask, "price_per_hour", 1e6, hardware.price_per_hour, kAssumedPrice);
  const std::vector<double> gpus = numbers(ask, "gpus"), rates = numbers(ask, "tokens_per_s");
  ask.nothing_else();
  if (gpus.empty() || gpus.size() != rates.size()) {
    throw UsageError(Flag("tokens_per_s"), str("has ", rates.size(), " values and gpus has ",
                                               gpus.size(), "; both need the same number"));
  }
  Json rows = Json::array();
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (std::isnan(gpus[i]) || std::isnan(rates[i])) {
      rows.push_back(nullptr);
      continue;
    }
    const double seconds = tokens / rates[i], gpu_hours = gpus[i] * seconds / 3600;
    rows.push_back({{"gpus", gpus[i]},
                    {"seconds", seconds},
                    {"gpu_hours", gpu_hours},
                    {"kwh", gpu_hours * watts.value / 1000},
                    {"money", gpu_hours * price.value}});
  }
  return {{"tokens", tokens},           {"watts", watts.value},
          {"watts_basis", watts.basis}, {"price_per_hour", price.value},
          {"price_basis", price.basis}, {"rows", std::move(rows)}};
}

Json memory_over_step_answer(const Knowledge& known, Ask& ask) {
  const auto wanted = ask.integer("pipeline_rank", -1, -1, 1 << 20);
  const planner::RunConfig q = ask.question(known.catalog, known.limits);
  check_passes(q, known.limits.drawn, str("the drawn passes must be at most ", known.limits.drawn));
  const std::vector<planner::Memory> ranks = planner::memory_by_rank(q);
  if (wanted >= std::ssize(ranks)) {
    throw UsageError(Flag("pipeline-rank"),
                     str("got ", wanted, "; must be less than ", ranks.size()));
  }
  const int rank = wanted >= 0 ? static_cast<int>(wanted) : planner::most_loaded_rank(ranks);
  const simulator::MemoryOverStep over = simulator::memory_over_step(q, rank);
  Json seconds = Json::array(), activations = Json::array(), temporary = Json::array();
  const auto* peak = &over.moments.front();
  for (const simulator::MemoryOverStep::Moment& moment : over.moments) {
    seconds.push_back(moment.seconds);
    activations.push_back(moment.activations);
    temporary.push_back(moment.temporary);
    // The first of equal ones, in spite of rounding.
    if (over.total(moment) > over.total(*peak) * (1 + 1e-12)) peak = &moment;
  }
  return {{"pipeline_rank", rank},
          {"pipeline_ranks", ranks.size()},
          {"step", over.step},
          {"peak", over.whole.total()},
          {"peak_at", peak->seconds},
          {"capacity", planner::usable_memory(q.hardware)},
          {"seconds", std::move(seconds)},
          {"params", over.whole.params},
          {"grads", over.whole.grads},
          {"optimizer", over.whole.optimizer},
          {"buffers", over.whole.buffers},
          {"activations", std::move(activations)},
          {"temporary", std::move(temporary)}};
}

}  // namespace tessera::dashboard
