#include "tessera/simulator/group_run.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "tessera/core/philox.h"
#include "tessera/core/portable_math.h"
#include "tessera/planner/step_clock.h"
#include "tessera/planner/step_program.h"

namespace tessera::simulator {
namespace {

// Returns sin(2π · turns) for turns in [0, 2).
double sine_of_turns(double turns) {
  const double quarter = std::floor(4 * turns + 0.5);
  const double angle = 2 * std::numbers::pi * (turns - quarter / 4), square = angle * angle;
  const int turned = static_cast<int>(quarter) % 4;
  const bool is_sine = turned % 2 == 0;
  double sum = 1;  // Taylor series of sin(angle) / angle, or of cos(angle)
  for (int n = 16; n > 0; n -= 2) sum = 1 - sum * square / (is_sine ? n * (n + 1) : (n - 1) * n);
  if (is_sine) sum *= angle;
  return turned < 2 ? sum : -sum;
}

// Same as Philox::normal(), but with the same bits on every platform: [Note: portable math]. About
// one value in 10⁹ differs in the last bit of the float.
double portable_normal(const Philox& random, std::uint64_t index) {
  const PhiloxBlock words = random.block(index / 2);
  const double radius = std::sqrt(-2.0 * portable::log((words[0] + 0.5) * 0x1p-32));
  const double turns = (words[1] + 0.5) * 0x1p-32;
  return static_cast<float>(radius * sine_of_turns(index % 2 == 0 ? turns + 0.25 : turns));
}

}  // namespace

Result run_group(const Scenario& s, int replicas) {
  const planner::Places places = s.places();
  const planner::RankProgram program = make_rank_programs(s, places, s.make_schedule()).front();
  const auto n = static_cast<std::size_t>(replicas);
  const planner::RankStrides strides = s.strides();
  const std::vector<double> slow = slowness(s);
  planner::StepClock clock(n, s, places);
  for (const int chunk : program.gathers) {
    clock.expect_gathers(1, program.chunks[static_cast<std::size_t>(chunk)].gather.each(0).seconds);
  }
  clock.start(program.start);

  Result result;
  result.replicas = replicas;
  result.ranks.resize(n);
  std::vector<double> seconds(n);
  PerAxis<double> sent;
  std::int64_t computed = 0;
  for (const planner::Op& op : program.ops) {
    for (std::size_t d = 0; d < n; ++d) {
      const Pace pace = pace_of(s, slow, strides.rank(0, static_cast<int>(d)), strides, computed);
      seconds[d] = charge_op(result.ranks[d], s, op, pace);
    }
    ++computed;
    const planner::Transfers& reduce = program.chunks[static_cast<std::size_t>(op.chunk)].reduce;
    clock.run(op, reduce, seconds.data());
    if (op.reduces + op.late_reduces > 0) {
      add_sent(sent, s, reduce.kind, reduce.bytes(), reduce.expert_bytes());
    }
  }
  for (const planner::Op& op : program.ops) {
    if (op.late_reduces == 0) continue;
    clock.reduce_late(program.chunks[static_cast<std::size_t>(op.chunk)].reduce);
  }
  clock.finish();
  for (const int chunk : program.gathers) {
    const planner::Transfers& gather = program.chunks[static_cast<std::size_t>(chunk)].gather;
    add_sent(sent, s, gather.kind, gather.each(0).bytes, gather.each(0).expert_bytes);
  }
  double end = 0;
  for (std::size_t d = 0; d < n; ++d) end = std::max(end, clock.now(d));
  result.step = end + s.optimizer;
  for (std::size_t d = 0; d < n; ++d) {
    RankTime& rank = result.ranks[d];
    rank.comm[Axis::dp_shard] = clock.exposed(d).shards;
    rank.comm[Axis::dp_replicate] = clock.exposed(d).across;
    rank.bubble = end - clock.now(d);
    rank.optimizer = s.optimizer;
    rank.sent = sent;
    result.mean.add(rank, 1.0 / static_cast<double>(n));
  }
  if (result.step > 0) {
    result.utilization = result.mean.compute / result.step;
    result.bubble = result.mean.bubble / result.step;
  }
  return result;
}

double charge_op(RankTime& time, const Scenario& s, const planner::StepOp& op, const Pace& pace) {
  time.compute += op.work * pace.mean;
  const AxisSet wide = s.axes.wide(kLockstepAxes);
  double behind = op.work * (pace.slowest - pace.mean);  // charged to the innermost of these axes
  for (const Axis axis : kAllAxes) {
    time.comm[axis] += (wide.contains(axis) ? std::exchange(behind, 0.0) : 0) + op.comm[axis];
  }
  return op.work * pace.slowest + sum(op.comm);
}

std::vector<double> slowness(const Scenario& s) {
  std::vector<double> slow;
  if (s.stragglers.empty()) return slow;
  slow.assign(static_cast<std::size_t>(s.world()), 1.0);
  for (const Straggler& each : s.stragglers)
    slow[static_cast<std::size_t>(each.rank)] *= each.factor;
  return slow;
}

Pace pace_of(const Scenario& s, const std::vector<double>& slow, int first,
             const planner::RankStrides& strides, std::int64_t computed) {
  if (!s.irregular()) return {};
  Pace pace{0, 0};
  const auto neighbors = static_cast<int>(s.axes.ranks(kLockstepAxes));
  for (int n = 0; n < neighbors; ++n) {
    int rank = first, outer = n;
    for (const Axis axis : kLockstepAxes) {
      rank += outer % s.axes.size(axis) * strides.of[axis];
      outer /= s.axes.size(axis);
    }
    double factor = slow.empty() ? 1.0 : slow[static_cast<std::size_t>(rank)];
    if (s.jitter > 0) {
      const Philox random(s.seed, static_cast<std::uint64_t>(rank));
      const double normal = portable_normal(random, static_cast<std::uint64_t>(computed));
      factor *= portable::exp(s.jitter * normal - 0.5 * s.jitter * s.jitter);
    }
    pace.slowest = std::max(pace.slowest, factor);
    pace.mean += factor / neighbors;
  }
  return pace;
}

void add_sent(PerAxis<double>& sent, const Scenario& s, planner::Collective kind, double bytes,
              double expert_bytes) {
  const auto ring = [](planner::Collective by, double all, double ranks) {
    return (by == planner::Collective::all_reduce ? 2 : 1) * (ranks - 1.0) / ranks * all;
  };
  sent[Axis::dp_shard] +=
      ring(kind, bytes, s.shards()) + ring(kind, expert_bytes, s.expert_shards());
  if (kind != planner::Collective::reduce_scatter || s.replicas() == 1) return;
  sent[Axis::dp_replicate] +=
      ring(planner::Collective::all_reduce, bytes / s.shards() + expert_bytes / s.expert_shards(),
           s.replicas());
}

}  // namespace tessera::simulator
