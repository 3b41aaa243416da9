#include "tessera/simulator/sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/formulas.h"

namespace tessera::simulator {
namespace {

constexpr double kParted = 0.05;  // difference of efficiencies that is reported

[[noreturn]] void bad_sweep(std::string_view text) {
  throw UsageError(str(
      "got ", quote(text),
      ", must be an axis (dp, dp-replicate, tp or pp) and a range of sizes from 1 to 1,048,576, "
      "such as dp=1..4096. Sizes double from the first to the last."));
}

int read_size(std::string_view part, std::string_view whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc{} || end != part.data() + part.size() || value < 1 || value > 1 << 20) {
    bad_sweep(whole);
  }
  return value;
}

std::string percent(double part) { return fixed(100 * part, 1) + "%"; }

// Describes the part of the step that has grown most since the first size.
std::string largest_growth(const SweepRow& row, const SweepRow& first) {
  struct Part {
    double growth;
    double seconds;
    const char* what;
  };
  const auto part = [&](double now, double before, const char* what) {
    return Part{now / row.step - before / first.step, now, what};
  };
  const auto comm_words = [](Axis axis) {
    switch (axis) {
      case Axis::dp_shard: return "exposed data-parallel communication";
      case Axis::dp_replicate: return "communication between replicas";
      case Axis::tp: return "tensor-parallel communication";
      case Axis::pp: return "messages between stages";
    }
    return "";
  };
  std::vector<Part> parts;
  for (const Axis axis : kPrintedAxes) {
    parts.push_back(part(row.mean.comm[axis], first.mean.comm[axis], comm_words(axis)));
  }
  parts.push_back(part(row.mean.bubble, first.mean.bubble, "bubble"));
  parts.push_back(part(row.mean.optimizer, first.mean.optimizer, "the optimizer"));
  const Part& most = *std::max_element(
      parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.growth < b.growth; });
  return str(percent(most.seconds / row.step), " of the step is ", most.what);
}

double exposed_share(const SweepRow& row) { return sum(row.mean.comm) / row.step; }

std::string against(const SweepRow& row) {
  return str("(", percent(row.efficiency), " against ", percent(row.law), ")");
}

}  // namespace

SweepRange parse_sweep(std::string_view text) {
  SweepRange range;
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) bad_sweep(text);
  range.axis = text.substr(0, equals);
  std::replace(range.axis.begin(), range.axis.end(), '-', '_');  // flags use hyphens
  if (find_axis(range.axis) == nullptr) bad_sweep(text);
  const std::string_view sizes = text.substr(equals + 1);
  const std::size_t dots = sizes.find("..");
  const int first = read_size(sizes.substr(0, dots), text);
  const int last = dots == std::string_view::npos ? first : read_size(sizes.substr(dots + 2), text);
  if (last < first) bad_sweep(text);
  for (long long size = first; size < last; size *= 2) {
    range.sizes.push_back(static_cast<int>(size));
  }
  range.sizes.push_back(last);
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
  const SweepRow* first = nullptr;
  const SweepRow* better = nullptr;
  const SweepRow* worse = nullptr;
  for (const SweepRow& row : rows) {
    if (!row.refused.empty()) continue;
    if (!first) first = &row;
    if (!better && row.efficiency > row.law + kParted) better = &row;
    if (!worse && row.efficiency < row.law - kParted) worse = &row;
  }
  const std::string law = str("1/(1 + ", law_cost, " · log2 ", range.axis, ")");
  if (!better && !worse) {
    return str("Simulation and the law ", law, " stay within ", percent(kParted),
               " of each other.");
  }
  std::string text = str("The law is ", law, ", which ignores overlap and bandwidth.");
  if (better) {
    text += str(" From ", range.axis, " ", better->size, " on the simulation does better ",
                against(*better), ": exposed communication takes ", percent(exposed_share(*better)),
                " of the step, and ", percent(exposed_share(*first)), " at ", range.axis, " ",
                first->size, ".");
  }
  if (worse) {
    text += str(" From ", range.axis, " ", worse->size, " on it does worse ", against(*worse), ": ",
                largest_growth(*worse, *first), ".");
  }
  return text;
}

}  // namespace tessera::simulator
