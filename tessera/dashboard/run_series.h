#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/dashboard/ask.h"
#include "tessera/dashboard/expert_series.h"

namespace tessera::dashboard {

// Figures of a step that are kept, with the names of `tessera train --metrics`.
// The last two are sums since the first line: tokens, and seconds in steps.
inline constexpr std::array<const char*, 22> kSeriesNames = {
    "loss",         "grad_norm",       "lr",         "tokens_per_s",   "step_s",
    "forward_s",    "backward_s",      "comm_s",     "comm_exposed_s", "optimizer_s",
    "data_s",       "bubble_s",        "mem_bytes",  "mem_peak_bytes", "sent_bytes",
    "eval_loss",    "gpu_utilization", "gpu_memory", "gpu_power_w",    "gpu_temperature_c",
    "tokens_total", "elapsed_s"};
inline constexpr std::size_t kSeries = kSeriesNames.size();

struct Point {
  std::int64_t step = 0;
  std::array<double, kSeries> values{};  // NaN: absent
};

// Event at a step.
struct Mark {
  std::int64_t step = 0;
  std::string kind;  // "checkpoint", "restart", "skipped", "evaluation", "end"
  std::string text;
};

// Reduces points to at most `most`, in order. Each range of points gives two: the minimum and the
// maximum of every series, in their original order.
std::vector<Point> downsampled(const Point* first, std::size_t count, std::size_t most);

// Series of one run, read line by line from its metrics.
class RunSeries {
 public:
  // With more than `most_points` points, each four become two.
  explicit RunSeries(std::size_t most_points = 1'000'000) : most_points_(most_points) {}

  void line(std::string_view text);
  void reset();  // forgets everything: the following lines are of a new file

  const std::vector<Point>& points() const { return points_; }
  const std::vector<Mark>& marks() const { return marks_; }
  const Json& start() const { return start_; }      // the run and its prediction; null: absent
  const Json& summary() const { return summary_; }  // null: not ended
  const Json& failure() const { return failure_; }  // {"state": "failed", "reason"}; null: none
  // Returns the mean of a series over the last points that have it, at most 50; NaN if none has.
  double recent_mean(const char* name) const;
  double maximum(const char* name) const;  // over all points; NaN if none has it
  // Ranks of the last line that had them: "ranks", a column by rank per phase, and "slow_ranks".
  const Json& ranks() const { return ranks_; }  // null: no line had them
  const ExpertSeries& experts() const { return experts_; }
  std::uint64_t version() const { return version_; }  // grows with each line
  // Grows when points or marks were removed: by a restart, a new file, or too many points.
  std::uint64_t epoch() const { return epoch_; }
  std::int64_t damaged() const { return damaged_; }  // number of invalid lines

  // Returns the series of points as columns, "steps" first.
  static Json columns(const std::vector<Point>& points);

 private:
  void step_line(const Json& line);
  void mark(Mark what, std::size_t most);

  std::size_t most_points_;
  std::vector<Point> points_;
  std::vector<Mark> marks_;
  Json start_, summary_, failure_, ranks_;
  ExpertSeries experts_;
  std::uint64_t version_ = 0, epoch_ = 0;
  std::int64_t damaged_ = 0;
};

}  // namespace tessera::dashboard
