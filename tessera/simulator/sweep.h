#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// Axis and its sizes. "dp=1..48" has sizes that double, and the last as written: 1, 2, 4 … 32, 48.
// "dp=6" is one size. Several ranges and sizes are separated by commas: dp=1..64,12.
struct SweepRange {
  std::string axis;  // dp, tp or pp
  std::vector<int> sizes;
};
SweepRange parse_sweep(std::string_view text);  // throws UsageError

// Scenario of one size, and the tokens of its step.
struct SweepCase {
  Scenario scenario;
  double tokens = 0;
};

// Result of one size.
struct SweepRow {
  int size = 0;
  int gpus = 0;
  std::string refused;        // reason that this size is invalid; the other members are then empty
  std::string refused_field;  // UsageError::field()
  double step = 0;            // seconds
  double tokens_per_s = 0;
  double efficiency = 0;  // throughput per GPU, relative to the first row
  double law = 0;         // 1 / (1 + c · log2 size), relative to the first row
  double bubble = 0, utilization = 0;
  RankTime mean;
};

// Simulates all sizes. `make` throws UsageError for an invalid size. If all sizes are invalid,
// throws the error of the first.
std::vector<SweepRow> sweep(const SweepRange& range, double law_cost,
                            const std::function<SweepCase(int size)>& make);

// Describes the differences between simulation and law: the first sizes at which the simulation is
// better and worse by more than 5 percentage points, and the reasons.
std::string compare_with_law(const SweepRange& range, const std::vector<SweepRow>& rows,
                             double law_cost);

// Returns a plot of throughput and efficiency.
std::string sweep_svg(const SweepRange& range, const std::vector<SweepRow>& rows, double law_cost,
                      const std::string& title);

}  // namespace tessera::simulator
