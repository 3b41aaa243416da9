#include "tessera/dashboard/run_series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMaxMarks = 10'000;
constexpr double kMaxSteps = 1e15;

std::size_t series_index(std::string_view name) {
  return static_cast<std::size_t>(std::find(kSeriesNames.begin(), kSeriesNames.end(), name) -
                                  kSeriesNames.begin());
}

double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : kNothing;
}

}  // namespace

std::vector<Point> downsampled(const Point* first, std::size_t count, std::size_t most) {
  if (count <= most) return {first, first + count};
  const std::size_t stretches = std::max<std::size_t>(1, most / 2);
  std::vector<Point> out;
  out.reserve(2 * stretches);
  for (std::size_t s = 0; s < stretches; ++s) {
    const std::size_t begin = count * s / stretches, end = count * (s + 1) / stretches;
    Point left = first[begin], right = first[end - 1];
    for (std::size_t v = 0; v < kSeries; ++v) {
      std::size_t least = end, greatest = end;
      for (std::size_t i = begin; i < end; ++i) {
        const double value = first[i].values[v];
        if (std::isnan(value)) continue;
        if (least == end || value < first[least].values[v]) least = i;
        if (greatest == end || value > first[greatest].values[v]) greatest = i;
      }
      if (least == end) {
        left.values[v] = right.values[v] = kNothing;
        continue;
      }
      left.values[v] = first[std::min(least, greatest)].values[v];
      right.values[v] = first[std::max(least, greatest)].values[v];
    }
    out.push_back(left);
    if (end - begin > 1) out.push_back(right);
  }
  return out;
}

void RunSeries::reset() {
  points_.clear();
  marks_.clear();
  experts_.clear();
  start_ = summary_ = failure_ = ranks_ = nullptr;
  ++version_, ++epoch_;
}

void RunSeries::line(std::string_view text) {
  ++version_;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("summary") && json["summary"].is_object()) {
    summary_ = json["summary"];
    const std::int64_t last = points_.empty() ? 0 : points_.back().step;
    const bool cut = summary_.contains("interrupted") && summary_["interrupted"] == true;
    mark({last, "end", cut ? "stopped" : "done"}, 2 * kMaxMarks);
    return;
  }
  if (json.is_object() && json.contains("end") && json["end"].is_object()) {
    failure_ = json["end"];
    mark({points_.empty() ? 0 : points_.back().step, "end", "failed"}, 2 * kMaxMarks);
    return;
  }
  const auto step = json.is_object() ? json.find("step") : json.end();
  if (!json.is_object() || step == json.end() || !step->is_number_integer() ||
      step->get<double>() < 0 || step->get<double>() >= kMaxSteps) {
    ++damaged_;
    return;
  }
  step_line(json);
}

void RunSeries::step_line(const Json& json) {
  Point point;
  point.step = json["step"].get<std::int64_t>();
  for (std::size_t v = 0; v < kSeries; ++v) point.values[v] = number_of(json, kSeriesNames[v]);
  if (const auto gpu = json.find("gpu"); gpu != json.end() && gpu->is_object()) {
    point.values[series_index("gpu_utilization")] = number_of(
        *gpu, gpu->contains("utilization") ? "utilization" : "utilisation");  // up to version 1.0
    point.values[series_index("gpu_memory")] = number_of(*gpu, "memory_used_bytes");
    point.values[series_index("gpu_power_w")] = number_of(*gpu, "power_w");
    point.values[series_index("gpu_temperature_c")] = number_of(*gpu, "temperature_c");
  }
  if (const auto eval = json.find("eval"); eval != json.end() && eval->is_object()) {
    point.values[series_index("eval_loss")] = number_of(*eval, "loss");
  }
  const bool begins = json.contains("start") && json["start"].is_object();
  if (begins) start_ = json["start"], ranks_ = nullptr;
  if (const auto ranks = json.find("ranks"); ranks != json.end()) {
    ranks_ = {{"ranks", *ranks}};
    if (json.contains("slow_ranks")) ranks_["slow_ranks"] = json["slow_ranks"];
  }
  const bool back = !points_.empty() && point.step <= points_.back().step;
  if (back || (begins && !points_.empty()) || !summary_.is_null() || !failure_.is_null()) {
    // Steps after the checkpoint are repeated.
    const std::int64_t reached = points_.empty() ? 0 : points_.back().step;
    while (!points_.empty() && points_.back().step >= point.step) points_.pop_back();
    experts_.remove_from(point.step);
    const auto erased = std::erase_if(
        marks_, [&](const Mark& mark) { return mark.kind == "end" || mark.step >= point.step; });
    if (back || erased > 0) ++epoch_;
    const std::int64_t lost = std::max<std::int64_t>(0, reached - point.step + 1);
    mark({point.step - 1, "restart", lost > 0 ? plural(lost, "step") + " done again" : ""},
         2 * kMaxMarks);
    summary_ = failure_ = nullptr;
  }
  for (const auto& [total, part] :
       {std::pair{"tokens_total", "tokens"}, std::pair{"elapsed_s", "step_s"}}) {
    const std::size_t v = series_index(total);
    const double before = points_.empty() ? 0 : points_.back().values[v];
    point.values[v] = before + number_of(json, part);
  }
  if (points_.size() >= most_points_) {
    points_ = downsampled(points_.data(), points_.size(), points_.size() / 2);
    ++epoch_;
  }
  points_.push_back(point);
  if (const auto experts = json.find("experts"); experts != json.end()) {
    experts_.add(point.step, *experts);
  }
  if (json.contains("save_exposed_s")) mark({point.step, "checkpoint", ""}, kMaxMarks);
  if (json.contains("skipped")) mark({point.step, "skipped", ""}, kMaxMarks);
  if (json.contains("eval")) mark({point.step, "evaluation", ""}, kMaxMarks);
}

// Ends and restarts have a higher limit than marks of steps.
void RunSeries::mark(Mark what, std::size_t most) {
  if (marks_.size() < most) marks_.push_back(std::move(what));
}

double RunSeries::recent_mean(const char* name) const {
  constexpr std::size_t kRecent = 50;
  const std::size_t v = series_index(name);
  double sum = 0, count = 0;
  for (std::size_t i = points_.size() - std::min(kRecent, points_.size()); i < points_.size();
       ++i) {
    if (std::isfinite(points_[i].values[v])) sum += points_[i].values[v], ++count;
  }
  return count > 0 ? sum / count : kNothing;
}

double RunSeries::maximum(const char* name) const {
  const std::size_t v = series_index(name);
  double most = kNothing;
  for (const Point& point : points_) most = std::fmax(most, point.values[v]);
  return most;
}

Json RunSeries::columns(const std::vector<Point>& points) {
  Json json;
  Json& steps = json["steps"] = Json::array();
  for (const Point& point : points) steps.push_back(point.step);
  for (std::size_t v = 0; v < kSeries; ++v) {
    const bool any = std::any_of(points.begin(), points.end(),
                                 [&](const Point& p) { return !std::isnan(p.values[v]); });
    if (!any) continue;
    Json& column = json[kSeriesNames[v]] = Json::array();
    for (const Point& point : points) {
      const double value = point.values[v];
      column.push_back(std::isfinite(value) ? Json(value) : Json());
    }
  }
  return json;
}

}  // namespace tessera::dashboard
