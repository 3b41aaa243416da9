#include "tessera/simulator/sweep.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/formulas.h"

namespace tessera::simulator {
namespace {

constexpr double kParted = 0.05;

[[noreturn]] void bad_sweep(std::string_view text) {
  throw UsageError(str("got ", quote(text),
                       ", wanted an axis and its sizes, each twice the one before, such as "
                       "dp=1..4096, with dp, tp or pp and sizes from 1 to 1,048,576"));
}

int read_size(std::string_view part, std::string_view whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc{} || end != part.data() + part.size() || value < 1 || value > 1 << 20) {
    bad_sweep(whole);
  }
  return value;
}

std::string percent(double part) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * part);
  return text;
}

// What takes most of the time besides computing, in words.
std::string largest_loss(const SweepRow& row) {
  struct Loss {
    double seconds;
    const char* what;
  };
  Loss most{0, ""};
  for (const Loss loss :
       {Loss{row.mean.dp, "data-parallel communication that nothing hides"},
        Loss{row.mean.tp, "tensor-parallel communication"},
        Loss{row.mean.pp, "messages between stages"}, Loss{row.mean.bubble, "the bubble"},
        Loss{row.mean.optimizer, "the optimizer"}}) {
    if (loss.seconds > most.seconds) most = loss;
  }
  if (most.seconds <= 0) return "nothing is lost to communication";
  return str(percent(most.seconds / row.step), " of the step is ", most.what);
}

}  // namespace

SweepRange parse_sweep(std::string_view text) {
  SweepRange range;
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) bad_sweep(text);
  range.axis = text.substr(0, equals);
  if (range.axis != "dp" && range.axis != "tp" && range.axis != "pp") bad_sweep(text);
  const std::string_view sizes = text.substr(equals + 1);
  const std::size_t dots = sizes.find("..");
  const int first = read_size(sizes.substr(0, dots), text);
  const int last = dots == std::string_view::npos ? first : read_size(sizes.substr(dots + 2), text);
  if (last < first) bad_sweep(text);
  for (long long size = first; size <= last; size *= 2) {
    range.sizes.push_back(static_cast<int>(size));
  }
  return range;
}

std::vector<SweepRow> sweep(const SweepRange& range, double law_cost,
                            const std::function<SweepCase(int size)>& make) {
  std::vector<SweepRow> rows;
  std::optional<SweepRow> first;
  for (const int size : range.sizes) {
    SweepRow row;
    row.size = size;
    try {
      const SweepCase one = make(size);
      const Result result = simulate(one.scenario);
      row.gpus = one.scenario.world();
      row.step = result.step;
      row.tokens_per_s = one.tokens / result.step;
      row.bubble = result.bubble;
      row.utilisation = result.utilisation;
      row.mean = result.mean;
    } catch (const UsageError& error) {
      row.refused = error.what();
      rows.push_back(std::move(row));
      continue;
    }
    if (!first) first = row;
    row.efficiency = row.tokens_per_s / row.gpus / (first->tokens_per_s / first->gpus);
    row.law = planner::scaling_efficiency(size, law_cost) /
              planner::scaling_efficiency(first->size, law_cost);
    rows.push_back(std::move(row));
  }
  if (!first) throw UsageError(rows.front().refused);
  return rows;
}

std::string compare_with_law(const SweepRange& range, const std::vector<SweepRow>& rows,
                             double law_cost) {
  const std::string law = str("the law 1/(1 + ", percent(law_cost), " · log2 ", range.axis, ")");
  for (const SweepRow& row : rows) {
    if (!row.refused.empty() || std::abs(row.efficiency - row.law) <= kParted) continue;
    const bool better = row.efficiency > row.law;
    return str("Simulation and ", law, " part at ", range.axis, " ", row.size, ": ",
               percent(row.efficiency), " against ", percent(row.law), "; ", largest_loss(row),
               better ? ", which the law overrates: it knows neither overlap nor bandwidth."
                      : ", which the law underrates: it knows neither bandwidth nor latency.");
  }
  return str("Simulation and ", law, " stay within ", percent(kParted), " of each other.");
}

}  // namespace tessera::simulator
