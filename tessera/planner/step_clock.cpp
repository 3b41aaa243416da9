#include "tessera/planner/step_clock.h"

#include <algorithm>

namespace tessera::planner {

StepClock::StepClock(std::size_t members, const Step& step, const Places& places)
    : members_(members),
      each_(members == 1 ? 1 : static_cast<std::size_t>(step.shard_dp())),
      interference_(step.interference),
      replica_interference_(step.replica_interference),
      prefetch_(static_cast<std::size_t>(step.prefetch())),
      replicas_(step.replicas() > 1),
      shares_links_(step.shares_links(places)),
      queues_(members / each_, Queue(1)),
      sums_(1),
      ready_(queues_.size()) {}

void StepClock::reserve(std::size_t gathers, std::size_t reductions) {
  gathers_.reserve(gathers);
  gather_places_.reserve(gathers);
  for (Queue& queue : queues_) queue.reserve(1 + gathers + reductions);
  if (replicas_) sums_.reserve(1 + reductions);
}

void StepClock::expect_gathers(int count, double seconds) {
  for (int i = 0; i < count; ++i) gathers_.push_back(seconds);
}

void StepClock::start(const StepStart& start) {
  ask_gathers(static_cast<std::size_t>(start.gathers));
  if (start.wait) wait_for_ = queues_.front().size() - 1;
}

template <typename Value>
void StepClock::ready_at(const Value& value) {
  std::fill(ready_.begin(), ready_.end(), 0.0);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    double& ready = ready_[m / each_];
    ready = std::max(ready, value(members_[m]));
  }
}

void StepClock::announce(double seconds) {
  for (std::size_t g = 0; g < queues_.size(); ++g) {
    const Ran last = queues_[g].back();
    double begin = std::max(last.end, ready_[g]);
    if (shares_links_) begin = std::max(begin, sums_.back().end);
    queues_[g].push_back({begin, begin + seconds, last.before + (last.end - last.begin)});
  }
}

void StepClock::reduce(const Transfers::Each& each) {
  announce(each.seconds);
  if (!replicas_) return;
  const Ran last = sums_.back();
  double begin = last.end;
  for (const Queue& queue : queues_) begin = std::max(begin, queue.back().end);
  sums_.push_back({begin, begin + each.across_seconds, last.before + (last.end - last.begin)});
}

void StepClock::ask_gathers(std::size_t upto) {
  const std::size_t most = std::min(upto, gathers_.size());
  while (gather_places_.size() < most) {
    const double seconds = gathers_[gather_places_.size()];
    gather_places_.push_back(queues_.front().size());
    announce(seconds);
  }
}

// Returns the total time that collectives have run before `until`. A collective that a member
// issues in a piece cannot run before that piece, so the queue is complete up to `until`.
double StepClock::running(const Queue& queue, std::size_t& at, double until) {
  while (at + 1 < queue.size() && queue[at + 1].begin <= until) ++at;
  return queue[at].before + (std::min(until, queue[at].end) - queue[at].begin);
}

// Charges the time from now until `until`, spent waiting for collectives.
void StepClock::charge_wait(std::size_t m, double until) {
  Member& member = members_[m];
  if (!replicas_) {
    member.exposed.shards += until - member.now;
    return;
  }
  const double before = running(sums_, member.sums_at, member.now);
  member.exposed += split_wait(shares_links_, member.now, until, queue_of(m)[wait_for_].end,
                               running(sums_, member.sums_at, until) - before);
}

void StepClock::run(const StepOp& op, const Transfers& reduces, const double* seconds) {
  const double share = 1.0 / op.pieces;
  const int n = op.blocking ? 0 : op.reduces;
  const bool slows = interference_ > 0 || replica_interference_ > 0;
  int next = 0;  // next reduction
  for (int piece = 0; piece < op.pieces; ++piece) {
    if (op.gathers) {
      if (gather_places_.size() <= used_) {
        ready_at([](const Member& member) { return member.now; });
        ask_gathers(used_ + 1);
      }
      wait_for_ = std::max(wait_for_, gather_places_[used_++]);
    }
    for (std::size_t m = 0; m < members_.size(); ++m) {
      Member& member = members_[m];
      const double there = std::max(queue_of(m)[wait_for_].end, sums_[wait_for_sums_].end);
      const double begin = std::max(member.now, there);
      if (begin > member.now) charge_wait(m, begin);
      double takes = seconds[m] * share;
      if (slows) {
        // The slowdown of the previous piece is charged to this one, when it is known.
        member.exposed += member.debt;
        takes += member.debt.total();
        member.debt = {};
      }
      member.began = begin;
      member.now = begin + takes;
    }
    if (op.gathers && prefetch_ > 0) {
      ready_at([](const Member& member) { return member.began; });
      ask_gathers(used_ + prefetch_);
    }
    for (; next < n; ++next) {
      const double part = part_of_piece(reduces.ready(next), piece, op.pieces);
      if (part > 1) break;
      ready_at([&](const Member& member) {
        return part < 1 ? member.began + (member.now - member.began) * part : member.now;
      });
      reduce(reduces.each(next));
    }
    if (!slows) continue;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      Member& member = members_[m];
      const auto beside = [&](const Queue& queue, std::size_t& at) {
        const double before = running(queue, at, member.began);
        return running(queue, at, member.now) - before;
      };
      member.debt.shards = interference_ * beside(queue_of(m), member.at);
      if (replicas_) member.debt.across = replica_interference_ * beside(sums_, member.sums_at);
    }
  }
  if (!op.blocking) return;
  ready_at([](const Member& member) { return member.now; });
  for (int i = 0; i < op.reduces; ++i) reduce(reduces.each(i));
  wait_for_ = queues_.front().size() - 1;
  wait_for_sums_ = sums_.size() - 1;
}

void StepClock::reduce_late(const Transfers& reduces) {
  ready_at([](const Member& member) { return member.now + member.debt.total(); });
  for (int i = 0; i < reduces.count; ++i) reduce(reduces.each(i));
}

void StepClock::finish() {
  wait_for_ = queues_.front().size() - 1;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    Member& member = members_[m];
    const double collectives = std::max(queue_of(m).back().end, sums_.back().end);
    const double end = std::max(member.now + member.debt.total(), collectives);
    if (replicas_) {
      member.exposed += member.debt;
      member.now += member.debt.total();
    }
    charge_wait(m, end);
    member.now = end;
    member.debt = {};
  }
}

}  // namespace tessera::planner
