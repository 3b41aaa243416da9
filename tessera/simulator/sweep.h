#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// "dp=1..48": an axis and its sizes, each twice the one before, and the last as it is written: 1,
// 2, 4 … 32, 48. "dp=6" is one size.
struct SweepRange {
  std::string axis;  // dp, tp or pp
  std::vector<int> sizes;
};
SweepRange parse_sweep(std::string_view text);  // throws UsageError

// What a sweep asks for a size: the scenario, and the tokens of its step.
struct SweepCase {
  Scenario scenario;
  double tokens = 0;
};

struct SweepRow {
  int size = 0;
  int gpus = 0;
  std::string refused;  // why this size cannot be; the rest is empty then
  double step = 0;
  double tokens_per_s = 0;
  double efficiency = 0;  // throughput per GPU, of that of the first row
  double law = 0;         // 1 / (1 + c · log2 size), likewise
  double bubble = 0, utilisation = 0;
  RankTime mean;
};

// `make` throws UsageError for a size that cannot be. Throws it on if no size can.
std::vector<SweepRow> sweep(const SweepRange& range, double law_cost,
                            const std::function<SweepCase(int size)>& make);

// Where simulation and law part, in words: the first sizes at which it is better and worse by more
// than 5 points, and why.
std::string compare_with_law(const SweepRange& range, const std::vector<SweepRow>& rows,
                             double law_cost);

// A picture of throughput and efficiency.
std::string sweep_svg(const SweepRange& range, const std::vector<SweepRow>& rows, double law_cost,
                      const std::string& title);

}  // namespace tessera::simulator
