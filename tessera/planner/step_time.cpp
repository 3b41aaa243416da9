#include "tessera/planner/step_time.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/places.h"
#include "tessera/planner/step_clock.h"
#include "tessera/planner/step_program.h"

namespace tessera::planner {
namespace {

constexpr double kRoundingOfSums = 1e-12;

// Seconds of a micro-batch on a rank, without data-parallel communication.
struct OwnTime {
  double all = 0;
  PerAxis<double> comm;  // included in it
  explicit OwnTime(const std::vector<StepChunk>& chunks) {
    for (const StepChunk& chunk : chunks) {
      all += chunk.total();
      for (const Axis axis : kAllAxes) {
        comm[axis] += chunk.forward_comm[axis] + chunk.backward_comm[axis];
      }
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

// Lower bound at one placement. A rank computes all its micro-batches, after the first has passed
// through the stages before it and before the last has gone back through them (a schedule that
// defers weight gradients may end with one, so backward is not counted then). At best its
// collectives overlap the computation, which then pays for the interference; in any case the step
// takes at least as long as the collectives. Of two concurrent queues, the more expensive one
// counts.
double least_at(const Step& s, const ReplicaPlace& replicas) {
  Places places;
  places.shard = replicas.shard;
  places.expert_shard = replicas.expert_shard;
  places.along[Axis::dp_replicate] = replicas.across;
  const bool in_turn = s.shares_links(places);
  const bool apart = is_zero_bubble(s.schedule);
  const double k = static_cast<double>(s.micros), share = std::min(1.0, replicas.interference);
  const double across_share = std::min(1.0, replicas.across_interference);
  const double each = s.policy == ReducePolicy::each ? k : 1;
  const double passes = s.zero == 3 ? k * (s.keep_params ? 1 : 2) : 1;
  double least = 0, before = 0;
  const std::vector<StepChunk>* last = nullptr;
  double own = 0, sent = 0, across = 0, longest = 0, collectives = 0, sums = 0;
  const StepChunk* priced =
      nullptr;  // chunk that `collectives` and `sums` belong to; most chunks are equal
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
    // Interference with the last piece does not delay a later piece.
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

using schedule::Kind;

class StepPlayer {
 public:
  StepPlayer(const Step& step, const Places& places, std::int64_t micros)
      : s_(step),
        schedule_(step.make_schedule(micros)),
        programs_(make_rank_programs(step, places, schedule_)) {
    ranks_.reserve(programs_.size());
    channels_.resize(programs_.size() * static_cast<std::size_t>(schedule_.chunks) * 2);
    near_ = step.hop_seconds({2, 2, 1, 1});
    far_ = step.hop_seconds(places.hop);
    strides_ = step.strides();
    for (const RankProgram& program : programs_) {
      Rank& rank = ranks_.emplace_back(StepClock(1, step, places));
      std::size_t reductions = 0;
      for (const Op& op : program.ops) {
        reductions += static_cast<std::size_t>(op.reduces + op.late_reduces);
      }
      rank.clock.reserve(program.gathers.size(), reductions);
      for (const int chunk : program.gathers) {
        rank.clock.expect_gathers(
            1, program.chunks[static_cast<std::size_t>(chunk)].gather.each(0).seconds);
      }
      rank.clock.start(program.start);
    }
  }

  PlayedStep play() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) todo_.push_back(r);
    while (!todo_.empty()) {
      const std::size_t r = todo_.back();
      todo_.pop_back();
      advance(r);
    }
    PlayedStep played;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].op < programs_[r].ops.size()) {
        throw Error(str("schedule ", s_.schedule, ": pipeline rank ", r,
                        " waits for a message that is never sent"));
      }
      played.ranks.push_back(finish(r));
      played.end = std::max(played.end, played.ranks.back().end);
    }
    for (PlayedRank& rank : played.ranks) rank.idle += played.end - rank.end;
    return played;
  }

 private:
  struct Message {
    double sent = 0, there = 0;
  };
  struct Channel {
    std::vector<Message> messages;
    std::size_t taken = 0;
  };
  struct Rank {
    explicit Rank(StepClock its) : clock(std::move(its)) {}
    StepClock clock;
    std::size_t op = 0;
    PlayedRank time;
  };

  Channel& channel(std::size_t rank, int chunk, bool gradient) {
    const auto chunks = static_cast<std::size_t>(schedule_.chunks);
    return channels_[(rank * chunks + static_cast<std::size_t>(chunk)) * 2 + (gradient ? 1 : 0)];
  }

  // Returns the seconds of a hop. If only some replicas have both ends on one node, the slower hop
  // counts.
  double hop(std::size_t from, int to) const {
    const std::int64_t ranks = s_.axes.ranks(kDataAxes);
    const auto replicas = static_cast<int>(std::min<std::int64_t>(ranks, s_.topology.per_node));
    for (int d = 0; d < replicas; ++d) {
      if (s_.node(strides_.rank(static_cast<int>(from), d)) != s_.node(strides_.rank(to, d))) {
        return far_;
      }
    }
    return near_;
  }

  void advance(std::size_t r) {
    Rank& rank = ranks_[r];
    const RankProgram& program = programs_[r];
    for (; rank.op < program.ops.size(); ++rank.op) {
      const Op& op = program.ops[rank.op];
      const double now = rank.clock.now();
      if (is_compute(op.kind)) {
        const double seconds = op.work + sum(op.comm);
        rank.clock.run(op, program.chunks[static_cast<std::size_t>(op.chunk)].reduce, &seconds);
      } else if (op.kind == Kind::send_activation || op.kind == Kind::send_gradient) {
        const auto peer = static_cast<std::size_t>(op.peer);
        channel(peer, op.peer_chunk, op.kind == Kind::send_gradient)
            .messages.push_back({now, now + hop(r, op.peer)});
        todo_.push_back(peer);
      } else {
        Channel& from = channel(r, op.chunk, op.kind == Kind::receive_gradient);
        if (from.taken == from.messages.size()) return;
        const Message message = from.messages[from.taken++];
        const double sent = std::max(now, message.sent), there = std::max(now, message.there);
        rank.time.idle += sent - now;
        rank.time.comm[Axis::pp] += there - sent;
        rank.clock.wait_until(there);
      }
    }
  }

  PlayedRank finish(std::size_t r) {
    Rank& rank = ranks_[r];
    for (const Op& op : programs_[r].ops) {
      if (op.late_reduces == 0) continue;
      rank.clock.reduce_late(programs_[r].chunks[static_cast<std::size_t>(op.chunk)].reduce);
    }
    rank.clock.finish();
    rank.time.comm[Axis::dp_shard] = rank.clock.exposed().shards;
    rank.time.comm[Axis::dp_replicate] = rank.clock.exposed().across;
    rank.time.end = rank.clock.now();
    return rank.time;
  }

  const Step& s_;
  schedule::Schedule schedule_;
  std::vector<RankProgram> programs_;
  std::vector<Channel> channels_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> todo_;  // ranks that may be able to continue
  RankStrides strides_;
  double near_ = 0, far_ = 0;
};

struct RunKind {
  double low, high;  // of measured / predicted
  const char* basis;
};

// 10% and 90% quantiles of measured steps on A100s that benchmarks/cross_validate.py held out of
// the fit, by model or by mesh, whichever is farther from 1.
constexpr RunKind kOneNode{0.909, 1.087, "140 held-out steps of Megatron-LM on one node of A100s"};
constexpr RunKind kSeveralNodes{0.950, 1.129,
                                "20 held-out steps of Megatron-LM on 8 to 64 nodes of A100s"};

// Interval of a kind with few runs, from their minimum and maximum. The next run is between these
// with probability (n - 1) / (n + 1); the interval is widened in proportion if that is less than
// 80%.
constexpr RunKind of_few(double least, double most, int n, const char* basis) {
  const double middle = (least + most) / 2, stretch = 0.8 * (n + 1) / (n - 1);
  const double half = (most - least) / 2 * (stretch > 1 ? stretch : 1);
  return {middle - half, middle + half, basis};
}
// Runs of docs/benchmarks.md, and published runs.
constexpr RunKind kOwnGpu = of_few(0.910, 0.998, 7, "7 steps of Tessera on one H200");
constexpr RunKind kPlain =
    of_few(0.955, 1.167, 7, "4 steps of PyTorch on one H200 and 3 published runs on H100s");
// With experts: the published runs of tests/data/published_expert_runs.csv, together with those of
// the same software without experts.
constexpr RunKind kMegatronExperts{
    of_few(0.960, 0.994, 2, "").low, kSeveralNodes.high,
    "2 published runs with experts, and 20 held-out steps of Megatron-LM without"};
constexpr RunKind kPlainExperts = of_few(
    0.730, 1.167, 8, "1 published run with experts on H100s, and 7 steps of PyTorch without");
// Limits checked by benchmarks/compare_plan.py.
constexpr RunKind kOwnCpu{0.90, 1.10, "Tessera's own steps on a calibrated host"};

// Unmeasured kinds: 1.5 times as far from the prediction as the farthest measured kind.
constexpr double kFarther = 1.5;
constexpr RunKind unmeasured() {
  double low = 1, high = 1;
  for (const RunKind& kind : {kOneNode, kSeveralNodes, kOwnGpu, kPlain, kOwnCpu}) {
    low = kind.low < low ? kind.low : low;
    high = kind.high > high ? kind.high : high;
  }
  return {1 - kFarther * (1 - low), 1 + kFarther * (high - 1),
          "no measured run of its kind: 1.5 times the widest measured interval"};
}

RunKind run_kind(const RunConfig& q) {
  const Places on = places(q);
  if (q.cp() > 1 || on.along[Axis::tp].nodes() > 1) return unmeasured();
  if (q.model.experts.any()) {
    if (q.software == Software::tessera || on.along[Axis::ep].nodes() > 1) return unmeasured();
    return q.software == Software::megatron ? kMegatronExperts : kPlainExperts;
  }
  if (q.software == Software::megatron) return q.nodes > 1 ? kSeveralNodes : kOneNode;
  if (q.software == Software::pytorch) return kPlain;
  if (q.nodes > 1) return unmeasured();
  return q.hardware.cpu ? kOwnCpu : kOwnGpu;
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
  for (const Axis axis : kAllAxes) time.comm[axis] = k * own.comm[axis];
  time.compute = k * (own.all - sum(own.comm));
  time.comm[Axis::dp_shard] = rank.comm[Axis::dp_shard];
  time.comm[Axis::dp_replicate] = rank.comm[Axis::dp_replicate];
  time.comm[Axis::pp] = rank.comm[Axis::pp];
  time.optimizer = s.optimizer;
  double end = played.end;
  if (s.tied_bytes > 0 && s.pipelined()) {
    // The first and the last pipeline rank wait for each other, and then for the all-reduce.
    const double both = std::max(played.ranks.front().end, played.ranks.back().end);
    const double tied = places.seconds(Collective::all_reduce, s.tied_bytes, places.tied);
    end = std::max(end, both + tied);
    time.comm[Axis::pp] += end - played.end;
  }
  // The rest of the step is the bubble. A tiny rest is rounding error, not a bubble.
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
  const Places places = s.averages_gradients() ? s.places() : Places{};
  return least_at(s, {places.shard, s.interference, places.along[Axis::dp_replicate],
                      s.replica_interference, places.expert_shard});
}

StepTime step_time(const RunConfig& q) { return step_time(describe_step(q)); }

PlayedStep play_whole_step(const Step& step, const Places& places) {
  return StepPlayer(step, places, step.micros).play();
}

PlayedStep play_step(const Step& step, const Places& places) {
  const std::int64_t stages = std::ssize(step.chunks), k = step.micros;
  // Enough micro-batches for the schedule to reach its steady state, with the same remainder as the
  // full step when micro-batches are grouped by pp.
  const std::int64_t group = std::max<std::int64_t>(stages, 2);
  const std::int64_t few = 2 * group + k % group, more = few + group;
  if (k <= more) return play_whole_step(step, places);
  const PlayedStep shorter = StepPlayer(step, places, few).play();
  PlayedStep played = StepPlayer(step, places, more).play();
  const double times = static_cast<double>(k - more) / static_cast<double>(group);
  const double more_end = played.end;
  const auto grow = [&](double& value, double before) { value += times * (value - before); };
  // A slower stage may not have delayed the others yet.
  double slowest = 0;
  for (const std::vector<StepChunk>& chunks : step.chunks) {
    double own = 0;
    for (const StepChunk& chunk : chunks) own += chunk.total();
    slowest = std::max(slowest, own);
  }
  played.end += times * std::max(played.end - shorter.end, static_cast<double>(group) * slowest);
  for (std::size_t r = 0; r < played.ranks.size(); ++r) {
    PlayedRank& rank = played.ranks[r];
    const PlayedRank& before = shorter.ranks[r];
    for (const Axis axis : kAllAxes) grow(rank.comm[axis], before.comm[axis]);
    grow(rank.idle, before.idle);
    rank.end = played.end - (more_end - rank.end);
  }
  return played;
}

Interval step_interval(const RunConfig& q, double step) {
  const RunKind kind = run_kind(q);
  return {kind.low * step, kind.high * step, kind.basis};
}

}  // namespace tessera::planner
