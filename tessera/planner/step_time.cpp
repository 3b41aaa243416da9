#include "tessera/planner/step_time.h"

#include <algorithm>

#include "tessera/planner/step_play.h"

namespace tessera::planner {
namespace {

constexpr double kRoundingOfSums = 1e-12;

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

std::size_t slowest_rank(const Step& step) {
  std::size_t slowest = 0;
  double most = 0;
  for (std::size_t r = 0; r < step.chunks.size(); ++r) {
    const double own = OwnTime(step.chunks[r]).all;
    if (own > most) {
      most = own;
      slowest = r;
    }
  }
  return slowest;
}

// A rank computes all its micro-batches; before that the first one has come through the stages
// before it, and after that the last one goes back (a weight gradient that was put off may be the
// last, so then it does not count). What its collectives take is beside that at best, where it
// costs the interference, and their own time in any case. Of two queues that run side by side the
// one that costs more counts.
double least_at(const Step& s, const ReplicaPlace& replicas) {
  Places places;
  places.along[Axis::dp_shard] = replicas.dp;
  places.along[Axis::dp_replicate] = replicas.across;
  const bool in_turn = s.shares_links(places);
  const bool apart = s.schedule == "zb-h1" || s.schedule == "zb-v";
  const double k = static_cast<double>(s.micros), share = std::min(1.0, replicas.interference);
  const double across_share = std::min(1.0, replicas.across_interference);
  const double each = s.policy == ReducePolicy::each ? k : 1;
  const double passes = s.zero == 3 ? k * (s.keep_params ? 1 : 2) : 1;
  double least = 0, before = 0;
  const std::vector<StepChunk>* last = nullptr;
  double own = 0, sent = 0, across = 0, longest = 0, collectives = 0, sums = 0;
  const StepChunk* priced = nullptr;  // whose collectives these are: most chunks are alike
  for (const std::vector<StepChunk>& chunks : s.chunks) {
    if (last == nullptr || chunks != *last) {
      own = sent = across = longest = 0;
      for (const StepChunk& chunk : chunks) {
        own += k * chunk.total();
        longest = std::max(longest, chunk.total());
        if (priced == nullptr || chunk != *priced) {
          const Transfers reductions = s.reductions(chunk, places);
          collectives = passes * s.gathers(chunk, places).seconds() + each * reductions.seconds();
          sums = each * reductions.across_seconds();
          priced = &chunk;
        }
        sent += collectives;
        across += sums;
      }
    }
    // What the last piece pays for is not beside another one.
    const double beside = share * std::max(0.0, sent - share * longest);
    const double sums_beside = across_share * std::max(0.0, across - across_share * longest);
    const double all = in_turn ? beside + sums_beside : std::max(beside, sums_beside);
    const double alone = in_turn ? sent + across : std::max(sent, across);
    least = std::max({least, before + own, own + all, alone});
    before += chunks.front().forward + (apart ? 0 : chunks.front().backward());
    last = &chunks;
  }
  return least + s.optimizer;
}

}  // namespace

StepTime step_time(const Step& s) {
  const Places places = s.places();
  const PlayedStep played = play_step(s, places);
  const std::size_t slowest = slowest_rank(s);
  const OwnTime own(s.chunks[slowest]);
  const PlayedRank& rank = played.ranks[slowest];
  const double k = static_cast<double>(s.micros);
  StepTime time;
  time.comm[Axis::tp] = k * own.tp;
  time.compute = k * (own.all - own.tp);
  time.comm[Axis::dp_shard] = rank.comm[Axis::dp_shard];
  time.comm[Axis::dp_replicate] = rank.comm[Axis::dp_replicate];
  time.comm[Axis::pp] = rank.comm[Axis::pp];
  time.optimizer = s.optimizer;
  double end = played.end;
  if (s.tied_bytes > 0 && s.pp() > 1) {
    // The two ends of the pipeline wait for each other, and then for their sum.
    const double both = std::max(played.ranks.front().end, played.ranks.back().end);
    const double tied = places.seconds(Collective::all_reduce, s.tied_bytes, places.tied);
    end = std::max(end, both + tied);
    time.comm[Axis::pp] += end - played.end;
  }
  // What the parts do not add up to; where nothing is left that is only how sums are rounded.
  const double left = end + s.optimizer - time.step();
  time.bubble = left > kRoundingOfSums * end ? left : 0;
  return time;
}

double least_step_time(const Step& s, const std::vector<ReplicaPlace>& anywhere) {
  double least = least_at(s, anywhere.front());
  for (std::size_t i = 1; i < anywhere.size(); ++i) {
    least = std::min(least, least_at(s, anywhere[i]));
  }
  return least;
}

double least_step_time(const Step& s) {
  const Places places = s.dp() > 1 ? s.places() : Places{};
  return least_at(s, {places.along[Axis::dp_shard], s.interference,
                      places.along[Axis::dp_replicate], s.replica_interference});
}

StepTime step_time(const Question& q) { return step_time(describe_step(q)); }

}  // namespace tessera::planner
