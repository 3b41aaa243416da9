#include "tessera/planner/step_play.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/step_clock.h"
#include "tessera/planner/step_program.h"

namespace tessera::planner {
namespace {

using schedule::Kind;

class StepPlayer {
 public:
  StepPlayer(const Step& step, const Places& places, int micros)
      : s_(step),
        schedule_(schedule::make(step.schedule, step.pp(), micros, step.chunks_per_rank())),
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
        throw Error(str("schedule ", s_.schedule, ": pipeline rank ", r, " waits for ever"));
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

  // Where some replicas have both ends on one node and some have not, the slower way counts.
  double hop(std::size_t from, int to) const {
    const int replicas = std::min(s_.dp(), s_.topology.per_node);
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
        const double seconds = op.work + op.tp;
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
  std::vector<std::size_t> todo_;  // ranks that may go on
  RankStrides strides_;
  double near_ = 0, far_ = 0;
};

}  // namespace

PlayedStep play_whole_step(const Step& step, const Places& places) {
  return StepPlayer(step, places, static_cast<int>(step.micros)).play();
}

PlayedStep play_step(const Step& step, const Places& places) {
  const std::int64_t pp = step.pp(), k = step.micros;
  // Long enough for the schedule to go round and round, and like the step's own in what is left
  // over when micro-batches go in groups of ranks.
  const std::int64_t group = std::max<std::int64_t>(pp, 2);
  const std::int64_t few = 2 * group + k % group, more = few + group;
  if (k <= more) return play_whole_step(step, places);
  const PlayedStep shorter = StepPlayer(step, places, static_cast<int>(few)).play();
  PlayedStep played = StepPlayer(step, places, static_cast<int>(more)).play();
  const double times = static_cast<double>(k - more) / static_cast<double>(group);
  const double more_end = played.end;
  const auto grow = [&](double& value, double before) { value += times * (value - before); };
  // A stage that is slower than the others may not have held them up yet.
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

}  // namespace tessera::planner
