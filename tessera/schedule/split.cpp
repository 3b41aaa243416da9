#include "tessera/schedule/split.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::schedule {
namespace {

constexpr double kInfeasible = std::numeric_limits<double>::infinity();

std::size_t at(int i) { return static_cast<std::size_t>(i); }

void check_stages(int layers, int stages) {
  if (stages < 1) throw UsageError(str("a pipeline has ", stages, " stages; must be at least 1"));
  if (layers < stages) {
    throw UsageError(str("a model of ", layers, " layers cannot be cut into ", stages,
                         " stages: each stage needs a layer. Use fewer stages (--pp) or chunks"));
  }
}

// Returns the bounds of the split with the lowest total cost. `combine(cost of the stages before,
// cost of this stage)` defines the total cost.
template <typename Combine>
std::vector<int> best_split(const std::vector<double>& sums, int stages, Combine combine) {
  const int layers = static_cast<int>(sums.size()) - 1;
  std::vector<std::vector<double>> total(at(stages + 1),
                                         std::vector<double>(at(layers + 1), kInfeasible));
  std::vector<std::vector<int>> from(at(stages + 1), std::vector<int>(at(layers + 1), 0));
  total[0][0] = 0;
  for (int s = 1; s <= stages; ++s) {
    for (int end = s; end <= layers - (stages - s); ++end) {
      for (int begin = s - 1; begin < end; ++begin) {
        if (total[at(s - 1)][at(begin)] == kInfeasible) continue;
        const double w = combine(total[at(s - 1)][at(begin)], sums[at(end)] - sums[at(begin)]);
        if (w < total[at(s)][at(end)]) {
          total[at(s)][at(end)] = w;
          from[at(s)][at(end)] = begin;
        }
      }
    }
  }
  std::vector<int> bounds(at(stages + 1), layers);
  for (int s = stages; s > 0; --s) bounds[at(s - 1)] = from[at(s)][at(bounds[at(s)])];
  return bounds;
}

}  // namespace

std::vector<int> split(const std::vector<double>& costs, int stages) {
  check_stages(static_cast<int>(costs.size()), stages);
  std::vector<double> sums = {0};
  for (const double cost : costs) {
    if (!(cost >= 0) || std::isinf(cost)) {
      throw UsageError(
          str("layer ", sums.size() - 1, " costs ", cost, "; must be finite and not negative"));
    }
    sums.push_back(sums.back() + cost);
  }
  const auto maximum = [](double before, double stage) { return std::max(before, stage); };
  const std::vector<int> min_max = best_split(sums, stages, maximum);
  double most = 0;
  for (int s = 0; s < stages; ++s) {
    most = std::max(most, sums[at(min_max[at(s + 1)])] - sums[at(min_max[at(s)])]);
  }
  return best_split(sums, stages, [most](double before, double stage) {
    return stage > most ? kInfeasible : before + stage * stage;
  });
}

std::vector<int> split_by_hand(const std::vector<int>& layers_per_stage, int layers, int stages) {
  check_stages(layers, stages);
  std::vector<int> bounds = {0};
  for (const int count : layers_per_stage) {
    if (count < 1) throw UsageError(str("a stage has ", count, " layers; must be at least 1"));
    bounds.push_back(bounds.back() + count);
  }
  if (static_cast<int>(layers_per_stage.size()) != stages || bounds.back() != layers) {
    throw UsageError(str("got ", layers_per_stage.size(), " stages with ", bounds.back(),
                         " layers in total; must be ", stages, " stages with ", layers, " layers"));
  }
  return bounds;
}

}  // namespace tessera::schedule
