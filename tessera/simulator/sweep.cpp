#include "tessera/simulator/sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/axis_words.h"
#include "tessera/planner/formulas.h"

// Plot of a sweep: throughput on the left, efficiency per GPU on the right.
namespace tessera::simulator {
namespace {

constexpr double kParted = 0.05;  // difference of efficiencies that is reported

[[noreturn]] void bad_sweep(std::string_view text) {
  throw UsageError(str(
      "got ", quote(text),
      ", must be an axis (dp, dp-replicate, tp or pp) and a range of sizes from 1 to 1,048,576, "
      "such as dp=1..4096 or dp=1..4096,12. Sizes of a range double from the first to the last."));
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
  std::vector<Part> parts;
  for (const Axis axis : kPrintedAxes) {
    parts.push_back(
        part(row.mean.comm[axis], first.mean.comm[axis], planner::words_of(axis).growth));
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

constexpr double kWidth = 330, kHeight = 220, kTop = 64, kLeft = 80, kSecond = 500;
constexpr const char* kIdeal = "#999999";

// One of the two plots. x is log2 of the GPUs, y is the result of `height`, from 0 to 1.
struct Plot {
  Svg& svg;
  double left;
  const std::vector<SweepRow>& rows;
  double low, high;  // log2 of the GPUs

  double x(double gpus) const { return left + kWidth * (std::log2(gpus) - low) / (high - low); }
  static double y(double share) { return kTop + kHeight * (1 - share); }

  void line(const char* color, const char* dash,
            const std::function<double(const SweepRow&)>& height) const {
    for (std::size_t i = 1; i < rows.size(); ++i) {
      svg.line(x(rows[i - 1].gpus), y(height(rows[i - 1])), x(rows[i].gpus), y(height(rows[i])),
               color, dash);
    }
  }
  void dots(const std::function<double(const SweepRow&)>& height) const {
    for (const SweepRow& row : rows) svg.dot(x(row.gpus), y(height(row)), colors::kSimulated);
  }
  void rule(double share, const std::string& label) const {
    svg.line(left, y(share), left + kWidth, y(share), colors::kRule);
    svg.text(left - 8, y(share) + 5, label, Svg::Anchor::end);
  }
  void x_axis(const char* title) const {
    svg.text(left, kTop - 12, title);
    const std::size_t every = (rows.size() + 6) / 7;
    for (std::size_t i = 0; i < rows.size(); i += every) {
      const int gpus = rows[i].gpus;
      svg.line(x(gpus), y(0), x(gpus), y(1), colors::kRule);
      svg.text(x(gpus), y(0) + 18, format_grouped(gpus), Svg::Anchor::middle);
    }
    svg.text(left + kWidth / 2, y(0) + 38, "GPUs", Svg::Anchor::middle);
  }
};

}  // namespace

SweepRange parse_sweep(std::string_view text) {
  SweepRange range;
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) bad_sweep(text);
  range.axis = text.substr(0, equals);
  std::replace(range.axis.begin(), range.axis.end(), '-', '_');  // flags use hyphens
  if (find_axis(range.axis) == nullptr) bad_sweep(text);
  const std::string_view sizes = text.substr(equals + 1);
  for (std::size_t begin = 0, end = 0; end != sizes.npos; begin = end + 1) {
    end = sizes.find(',', begin);
    const std::string_view each = sizes.substr(begin, end - begin);
    const std::size_t dots = each.find("..");
    const int first = read_size(each.substr(0, dots), text);
    const int last = dots == each.npos ? first : read_size(each.substr(dots + 2), text);
    if (last < first) bad_sweep(text);
    for (long long size = first; size < last; size *= 2) {
      range.sizes.push_back(static_cast<int>(size));
    }
    range.sizes.push_back(last);
  }
  std::sort(range.sizes.begin(), range.sizes.end());
  range.sizes.erase(std::unique(range.sizes.begin(), range.sizes.end()), range.sizes.end());
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
      row.utilization = result.utilization;
      row.mean = result.mean;
    } catch (const UsageError& error) {
      row.refused = error.what();
      row.refused_field = error.field();
      rows.push_back(std::move(row));
      continue;
    }
    if (!first) first = row;
    row.efficiency = row.tokens_per_s / row.gpus / (first->tokens_per_s / first->gpus);
    row.law = planner::scaling_efficiency(size, law_cost) /
              planner::scaling_efficiency(first->size, law_cost);
    rows.push_back(std::move(row));
  }
  if (!first) throw UsageError(rows.front().refused, rows.front().refused_field);
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

std::string sweep_svg(const SweepRange& range, const std::vector<SweepRow>& all, double law_cost,
                      const std::string& title) {
  std::vector<SweepRow> rows;
  for (const SweepRow& row : all) {
    if (row.refused.empty()) rows.push_back(row);
  }
  Svg svg(860, 356, title);
  if (rows.empty()) return svg.finish();

  const SweepRow& first = rows.front();
  const auto ideal = [&](const SweepRow& row) {
    return first.tokens_per_s * row.gpus / first.gpus;
  };
  const double low = std::log2(first.gpus);
  Plot plot{svg, kLeft, rows, low, std::max(low + 1, std::log2(rows.back().gpus))};

  // Throughput, on logarithmic axes with whole powers of ten.
  double least = first.tokens_per_s, most = first.tokens_per_s;
  for (const SweepRow& row : rows) {
    least = std::min(least, row.tokens_per_s);
    most = std::max({most, row.tokens_per_s, ideal(row)});
  }
  const double bottom = std::floor(std::log10(least));
  const double top = std::max(bottom + 1, std::ceil(std::log10(most)));
  const auto share = [&](double tokens) { return (std::log10(tokens) - bottom) / (top - bottom); };
  for (double power = bottom; power <= top; ++power) {
    plot.rule((power - bottom) / (top - bottom), format_count(std::llround(std::pow(10, power))));
  }
  plot.x_axis("tokens/s");
  plot.line(kIdeal, "2 3", [&](const SweepRow& row) { return share(ideal(row)); });
  plot.line(colors::kLaw, "6 4", [&](const SweepRow& row) { return share(ideal(row) * row.law); });
  const auto throughput = [&](const SweepRow& row) { return share(row.tokens_per_s); };
  plot.line(colors::kSimulated, "", throughput);
  plot.dots(throughput);

  // Efficiency, from 0 to 100%, or to the maximum if scaling is superlinear.
  double best = 1;
  for (const SweepRow& row : rows) best = std::max(best, std::ceil(row.efficiency * 5) / 5);
  plot.left = kSecond;
  for (int i = 0; i <= 5; ++i) plot.rule(i / 5.0, str(std::lround(best * 20 * i), "%"));
  plot.x_axis("efficiency per GPU");
  plot.line(kIdeal, "2 3", [&](const SweepRow&) { return 1 / best; });
  plot.line(colors::kLaw, "6 4", [&](const SweepRow& row) { return row.law / best; });
  const auto efficiency = [&](const SweepRow& row) { return row.efficiency / best; };
  plot.line(colors::kSimulated, "", efficiency);
  plot.dots(efficiency);

  svg.legend(kLeft, 341, colors::kSimulated, "simulated");
  svg.legend(kLeft + 130, 341, colors::kLaw, str("1/(1 + ", law_cost, " · log2 ", range.axis, ")"));
  svg.legend(kLeft + 360, 341, kIdeal, "linear scaling");
  return svg.finish();
}

}  // namespace tessera::simulator
