#include "tessera/simulator/scenario.h"

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::simulator {
namespace {

void require_number(bool good, std::string_view what, double got, const char* allowed) {
  if (!good) throw UsageError(str(what, ": got ", got, ", must be ", allowed));
}

}  // namespace

Scenario scenario_of(const planner::RunConfig& resolved) {
  Scenario scenario;
  static_cast<planner::Step&>(scenario) = planner::describe_step(resolved);
  return scenario;
}

bool Scenario::symmetric() const {
  if (irregular()) return false;
  // Hops must cross nodes for all replicas or for none. With interleaved chunks the last rank also
  // sends to the first.
  const planner::RankStrides at = strides();
  for (int p = 0; p < pp(); ++p) {
    const int other = (p + 1) % pp();
    const bool crosses = node(at.rank(p, 0)) != node(at.rank(other, 0));
    for (int d = 1; d < dp(); ++d) {
      if ((node(at.rank(p, d)) != node(at.rank(other, d))) != crosses) return false;
    }
  }
  return true;
}

void check(const Scenario& s) {
  planner::check(s);
  require_number(s.jitter >= 0 && s.jitter <= 2, "jitter", s.jitter, "from 0 to 2");
  for (const Straggler& each : s.stragglers) {
    require_number(each.rank >= 0 && each.rank < s.world(), "straggler", each.rank,
                   "a rank of the mesh");
    require_number(each.factor > 0 && std::isfinite(each.factor), "factor of a straggler",
                   each.factor, "a positive number");
  }
}

}  // namespace tessera::simulator
