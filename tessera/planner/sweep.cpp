#include "tessera/planner/sweep.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/advice.h"
#include "tessera/planner/json.h"

namespace tessera::planner {
namespace {

constexpr std::size_t kMaxSwept = 200;

[[noreturn]] void bad_plan_sweep(std::string_view text, const std::string& why) {
  throw UsageError(str("--sweep ", quote(text), ": ", why,
                       " (must be a setting and its values, such as dp=1..64, which doubles, "
                       "seq=1024..8192:1024, in steps, or bucket-size=1MB,25MB)"),
                   "sweep");
}

const Field* swept_field(std::string_view text, std::string name) {
  if (name == "batch") name = "micro-batch";
  try {
    return &find_field(Command::plan, name);
  } catch (const UsageError& error) {
    bad_plan_sweep(text, error.what());
  }
}

bool is_whole(const Field& field) { return field.kind != Field::Kind::number; }
bool is_size(const Field& field) { return field.kind == Field::Kind::size; }

// Parses a number as the flag does, with units for sizes and counts.
double swept_number(const Field& field, std::string_view part, std::string_view whole) {
  try {
    if (is_size(field)) return static_cast<double>(parse_bytes(part));
    if (is_whole(field)) return static_cast<double>(parse_count(part));
    std::size_t used = 0;
    const std::string text(part);
    const double value = std::stod(text, &used);
    if (used != text.size() || !std::isfinite(value) || value < 0) throw UsageError("");
    return value;
  } catch (const std::exception&) {
    bad_plan_sweep(whole, str(quote(part), " is not a valid number for --", field.name));
  }
}

std::string swept_text(const Field& field, double value) {
  if (!is_whole(field)) return str(value);
  const std::int64_t whole = std::llround(value);
  const std::string size = is_size(field) ? format_bytes(whole) : "";
  return is_size(field) && parse_bytes(size) == whole ? size : str(whole);
}

// first..last, or first..last:step.
std::vector<std::string> range_values(const Field& field, std::string_view range,
                                      std::string_view whole) {
  const std::size_t dots = range.find("..");
  std::string_view to = range.substr(dots + 2);
  const std::size_t colon = to.find(':');
  const double first = swept_number(field, range.substr(0, dots), whole);
  const double last = swept_number(field, to.substr(0, colon), whole);
  const bool steps = colon != std::string_view::npos;
  const double step = steps ? swept_number(field, to.substr(colon + 1), whole) : 0;
  if (last < first) bad_plan_sweep(whole, "the range ends before it begins");
  if (steps ? !(step > 0) : !(first > 0)) {
    bad_plan_sweep(whole,
                   steps ? "the step must be greater than 0" : "doubling must start above 0");
  }
  std::vector<std::string> values;
  // By index, so that rounding errors do not accumulate.
  for (int i = 0;; ++i) {
    const double value = steps ? first + i * step : first * std::pow(2.0, i);
    if (value >= last * (1 - 1e-12)) break;
    if (values.size() >= kMaxSwept) {
      bad_plan_sweep(whole, str("there are more than ", kMaxSwept, " values"));
    }
    values.push_back(swept_text(field, value));
  }
  // Steps include the last value only if they reach it; doubling always includes it.
  const double over = steps ? std::fmod(last - first, step) : 0;
  if (!steps || over < 1e-9 * step || step - over < 1e-9 * step) {
    values.push_back(swept_text(field, last));
  }
  return values;
}

std::vector<std::string> listed_values(std::string_view list, std::string_view whole) {
  std::vector<std::string> values;
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view value = list.substr(0, comma);
    if (value.empty()) bad_plan_sweep(whole, "a value is empty");
    values.emplace_back(value);
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  if (values.size() > kMaxSwept) {
    bad_plan_sweep(whole, str("there are more than ", kMaxSwept, " values"));
  }
  return values;
}

double step_of(const SweptPlan& row) { return row.plan ? row.plan->time.step() : 0; }

// Returns 1, 2 or 5 times a power of ten, so that a few ticks cover the axis.
double tick_of(double most) {
  if (!(most > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double part : {0.2, 0.5, 1.0, 2.0, 5.0}) {
    if (most / (power * part) <= 6) return power * part;
  }
  return power * 10;
}

struct SweepPlot {
  Svg& svg;
  double left;
  double high;  // largest value of the axis
  std::size_t count;
  static constexpr double kWide = 330, kHigh = 230, kTop = 76;

  double x(std::size_t i) const {
    return left + kWide * (static_cast<double>(i) + 0.5) / static_cast<double>(count);
  }
  double y(double value) const { return kTop + kHigh * (1 - (high > 0 ? value / high : 0)); }
  double bar() const { return std::min(36.0, 0.7 * kWide / static_cast<double>(count)); }

  void axes(const std::string& name, const PlanSweep& sweep,
            std::string (*label)(double value)) const {
    svg.text(left, kTop - 16, name);
    const double tick = tick_of(high);
    for (double value = 0; value <= high * 1.0001; value += tick) {
      svg.line(left, y(value), left + kWide, y(value), colors::kRule);
      svg.text(left - 8, y(value) + 5, label(value), Svg::Anchor::end);
    }
    const std::size_t every = (count + 7) / 8;
    for (std::size_t i = 0; i < count; i += every) {
      svg.text(x(i), kTop + kHigh + 20, sweep.values[i], Svg::Anchor::middle);
    }
    svg.text(left + kWide / 2, kTop + kHigh + 42, "--" + sweep.setting, Svg::Anchor::middle);
  }
};

}  // namespace

PlanSweep parse_plan_sweep(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) bad_plan_sweep(text, "there is no \"=\"");
  const Field& field = *swept_field(text, std::string(text.substr(0, equals)));
  const std::string_view values = text.substr(equals + 1);
  PlanSweep sweep;
  sweep.setting = field.name;
  if (values.find("..") == std::string_view::npos) {
    sweep.values = listed_values(values, text);
    if (field.is_number()) {
      for (const std::string& value : sweep.values) swept_number(field, value, text);
    }
    return sweep;
  }
  if (!field.is_number()) {
    bad_plan_sweep(text, str("--", field.name, " is not a number; list its values with commas"));
  }
  sweep.values = range_values(field, values, text);
  return sweep;
}

std::vector<SweptPlan> sweep_plans(const PlanSweep& sweep, const RunConfig& settings,
                                   const Catalog& catalog) {
  std::vector<SweptPlan> rows;
  bool any = false;
  for (const std::string& value : sweep.values) {
    SweptPlan& row = rows.emplace_back();
    row.value = value;
    try {
      RunConfig with = settings;
      with.set(sweep.setting, value);
      row.plan = plan_numbers(resolve(look_up(with, catalog)));
      any = true;
    } catch (const UsageError& error) {
      row.refused = error.what();
      row.refused_field = error.field();
    }
  }
  if (!any) throw UsageError(rows.front().refused, rows.front().refused_field);
  return rows;
}

std::string to_json(const PlanSweep& sweep, const std::vector<SweptPlan>& rows) {
  Json all = Json::array();
  for (const SweptPlan& row : rows) {
    Json& json = all.emplace_back(Json{{"value", row.value}});
    if (row.plan) {
      json["plan"] = tree_of(*row.plan, /*advised=*/false);
    } else {
      json["error"] = row.refused;
    }
  }
  return one_line({{"swept", sweep.setting}, {"sweep", std::move(all)}});
}

std::string plan_sweep_svg(const PlanSweep& sweep, const std::vector<SweptPlan>& rows) {
  double most_bytes = 0, slowest = 0, usable = 0;
  bool timed = false;
  std::string title;
  for (const SweptPlan& row : rows) {
    if (!row.plan) continue;
    most_bytes = std::max(most_bytes, row.plan->needed());
    slowest = std::max(slowest, step_of(row));
    timed = timed || step_of(row) > 0;
    usable = usable_memory(row.plan->question.hardware);
    const RunConfig& q = row.plan->question;
    title =
        str(q.state_only() || q.model.name.empty()
                ? format_count(std::llround(std::min(row.plan->parameters, 9e18))) + " parameters"
                : q.model.name,
            " on ", q.hardware.name, ": memory and time against --", sweep.setting);
  }
  Svg svg(860, 390, title);
  SweepPlot memory{svg, 90, std::max(most_bytes, std::min(usable, 1.6 * most_bytes)), rows.size()};
  memory.axes("memory per rank", sweep, [](double bytes) { return size(bytes); });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].plan) continue;
    const Plan& plan = *rows[i].plan;
    const Memory& m = plan.assumed ? plan.assumed->memory : plan.memory;
    double base = 0;
    for (const auto& [bytes, color, what] :
         {std::tuple{m.params, colors::kParams, "parameters"},
          {m.grads, colors::kGrads, "gradients"},
          {m.optimizer, colors::kOptimizer, "optimizer state"},
          {m.activations, colors::kActivations, "activations"},
          {m.buffers + m.temporary - m.not_at_once, colors::kRest, "buffers and temporaries"}}) {
      svg.box(memory.x(i) - memory.bar() / 2, memory.y(base + bytes), memory.bar(),
              memory.y(base) - memory.y(base + bytes), color, str(what, " ", size(bytes)));
      base += bytes;
    }
  }
  if (usable > 0 && usable <= memory.high) {
    svg.line(memory.left, memory.y(usable), memory.left + SweepPlot::kWide, memory.y(usable),
             colors::kLimit, "6 4");
    svg.text(memory.left + SweepPlot::kWide, memory.y(usable) - 5, "usable memory",
             Svg::Anchor::end, colors::kLimit);
  }
  SweepPlot time{svg, 510, slowest, rows.size()};
  if (timed) {
    time.axes("step time", sweep, [](double seconds) { return format_time(seconds); });
    std::optional<std::size_t> last;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].plan) continue;
      const double at = time.y(step_of(rows[i]));
      if (last) svg.line(time.x(*last), time.y(step_of(rows[*last])), time.x(i), at, colors::kTime);
      svg.dot(time.x(i), at, rows[i].plan->fits ? colors::kTime : colors::kLimit,
              str(rows[i].value, ": ", format_time(step_of(rows[i])),
                  rows[i].plan->fits ? "" : ", does not fit"));
      last = i;
    }
  } else {
    svg.text(time.left, 160, "The step time is unknown: only the size is given.");
  }
  double x = svg.legend(90, 378, colors::kParams, "params");
  x = svg.legend(x, 378, colors::kGrads, "grads");
  x = svg.legend(x, 378, colors::kOptimizer, "optimizer");
  x = svg.legend(x, 378, colors::kActivations, "activations");
  svg.legend(x, 378, colors::kRest, "buffers, temporary");
  return svg.finish();
}

}  // namespace tessera::planner
