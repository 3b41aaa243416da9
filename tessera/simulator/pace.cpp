#include "tessera/simulator/pace.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/philox.h"

namespace tessera::simulator {

std::vector<double> slowness(const Scenario& s) {
  std::vector<double> slow;
  if (s.stragglers.empty()) return slow;
  slow.assign(static_cast<std::size_t>(s.world()), 1.0);
  for (const Straggler& each : s.stragglers)
    slow[static_cast<std::size_t>(each.rank)] *= each.factor;
  return slow;
}

Pace pace_of(const Scenario& s, const std::vector<double>& slow, int first, int stride,
             std::int64_t computed) {
  if (!s.irregular()) return {};
  Pace pace{0, 0};
  for (int t = 0; t < s.tp(); ++t) {
    const int rank = first + t * stride;
    double factor = slow.empty() ? 1.0 : slow[static_cast<std::size_t>(rank)];
    if (s.jitter > 0) {
      const Philox random(s.seed, static_cast<std::uint64_t>(rank));
      const double normal = random.normal(static_cast<std::uint64_t>(computed));
      factor *= std::exp(s.jitter * normal - 0.5 * s.jitter * s.jitter);
    }
    pace.slowest = std::max(pace.slowest, factor);
    pace.mean += factor / s.tp();
  }
  return pace;
}

void add_sent(PerAxis<double>& sent, const Scenario& s, planner::Collective kind, double bytes) {
  const auto ring = [](planner::Collective by, double all, double ranks) {
    return (by == planner::Collective::all_reduce ? 2 : 1) * (ranks - 1.0) / ranks * all;
  };
  sent[Axis::dp_shard] += ring(kind, bytes, s.shards());
  if (kind != planner::Collective::reduce_scatter || s.replicas() == 1) return;
  sent[Axis::dp_replicate] +=
      ring(planner::Collective::all_reduce, bytes / s.shards(), s.replicas());
}

}  // namespace tessera::simulator
