#include "tessera/planner/step_time.h"

#include <algorithm>

#include "tessera/planner/pipeline_time.h"
#include "tessera/planner/rank_clock.h"

namespace tessera::planner {
namespace {

// Of a micro-batch on a rank, without what data parallelism adds.
struct OwnTime {
  double all = 0, tp = 0;
  explicit OwnTime(const std::vector<StepChunk>& chunks) {
    for (const StepChunk& chunk : chunks) {
      all += chunk.total();
      tp += chunk.tp_forward + chunk.tp_backward;
    }
  }
};

double tied_seconds(const Step& step, const Places& places) {
  if (step.tied_bytes <= 0 || step.pp() == 1) return 0;
  return places.seconds(Collective::all_reduce, step.tied_bytes, places.tied);
}

}  // namespace

StepTime step_time(const Step& s) {
  const Places places = s.places();
  std::vector<RankTime> ranks, plain;
  std::vector<RankClock> clocks;
  OwnTime slowest(s.chunks.front());
  for (std::size_t r = 0; r < s.chunks.size(); ++r) {
    // Ranks in the middle are alike.
    const bool again = r > 0 && s.chunks[r] == s.chunks[r - 1];
    clocks.push_back(again ? clocks.back() : rank_clock(s, places, s.chunks[r]));
    ranks.push_back(clocks.back().micro);
    const OwnTime own(s.chunks[r]);
    if (own.all > slowest.all) slowest = own;
  }
  const double k = static_cast<double>(s.micros);
  StepTime time;
  time.optimizer = s.optimizer;
  time.tp = k * slowest.tp;
  time.compute = k * (slowest.all - slowest.tp);
  if (s.pp() == 1) {
    time.dp = clocks.front().total - k * slowest.all;
    return time;
  }
  const double hop = s.hop_seconds(places.hop);
  const PipelineTime pipeline =
      pipeline_time(s.schedule, ranks, s.micros, s.chunks_per_rank(), hop);
  // A stage's first forward and its last reduction are behind those of the stages before it.
  double begin = 0, end = 0, filled = 0, drained = 0;
  for (const RankClock& clock : clocks) {
    begin = std::max(begin, clock.late - filled);
    end = std::max(end, clock.after - drained);
    filled += clock.micro.forward + hop;
    drained += clock.micro.backward_input + clock.micro.backward_weight + hop;
  }
  double longest = 0;
  for (const RankTime& rank : ranks) longest = std::max(longest, rank.total());
  time.dp = begin + end + k * std::max(0.0, longest - slowest.all);
  time.pp = pipeline.hops + tied_seconds(s, places);
  time.bubble = std::max(0.0, pipeline.total - pipeline.hops - k * longest);
  return time;
}

StepTime step_time(const Question& q) { return step_time(describe_step(q)); }

}  // namespace tessera::planner
