#include "tessera/simulator/group_run.h"

#include <algorithm>

#include "tessera/planner/step_clock.h"
#include "tessera/planner/step_program.h"
#include "tessera/simulator/pace.h"

namespace tessera::simulator {

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
      const Pace pace =
          pace_of(s, slow, strides.rank(0, static_cast<int>(d)), strides.of[Axis::tp], computed);
      seconds[d] = op.work * pace.slowest + op.tp;
      result.ranks[d].compute += op.work * pace.mean;
      result.ranks[d].comm[Axis::tp] += op.work * (pace.slowest - pace.mean) + op.tp;
    }
    ++computed;
    const planner::Transfers& reduce = program.chunks[static_cast<std::size_t>(op.chunk)].reduce;
    clock.run(op, reduce, seconds.data());
    if (op.reduces + op.late_reduces > 0) add_sent(sent, s, reduce.kind, reduce.bytes());
  }
  for (const planner::Op& op : program.ops) {
    if (op.late_reduces == 0) continue;
    clock.reduce_late(program.chunks[static_cast<std::size_t>(op.chunk)].reduce);
  }
  clock.finish();
  for (const int chunk : program.gathers) {
    const planner::Transfers& gather = program.chunks[static_cast<std::size_t>(chunk)].gather;
    add_sent(sent, s, gather.kind, gather.each(0).bytes);
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
    result.utilisation = result.mean.compute / result.step;
    result.bubble = result.mean.bubble / result.step;
  }
  return result;
}

}  // namespace tessera::simulator
