#include "tessera/planner/step_clock.h"

#include <algorithm>

namespace tessera::planner {

StepClock::StepClock(std::size_t members, double interference, int prefetch)
    : members_(members),
      interference_(interference),
      prefetch_(static_cast<std::size_t>(prefetch)),
      ran_(1) {}

void StepClock::reserve(std::size_t gathers, std::size_t reductions) {
  gathers_.reserve(gathers);
  gather_places_.reserve(gathers);
  ran_.reserve(1 + gathers + reductions);
}

void StepClock::expect_gathers(int count, double seconds) {
  for (int i = 0; i < count; ++i) gathers_.push_back(seconds);
}

void StepClock::start(const StepStart& start) {
  ask_gathers(static_cast<std::size_t>(start.gathers), 0);
  if (start.wait) wait_for_ = ran_.size() - 1;
}

void StepClock::ask_gathers(std::size_t upto, double ready) {
  const std::size_t most = std::min(upto, gathers_.size());
  while (gather_places_.size() < most) {
    const double seconds = gathers_[gather_places_.size()];
    gather_places_.push_back(ran_.size());
    announce(ready, seconds);
  }
}

// How long collectives have run until then. What a member asks for in a piece cannot have run
// before it, so all that counts is known.
double StepClock::running(Member& member, double until) const {
  while (member.at + 1 < ran_.size() && ran_[member.at + 1].begin <= until) ++member.at;
  const Ran& ran = ran_[member.at];
  return ran.before + (std::min(until, ran.end) - ran.begin);
}

void StepClock::run(const StepOp& op, const Transfers& reduces, const double* seconds) {
  const double share = 1.0 / op.pieces;
  const int n = op.blocking ? 0 : op.reduces;
  int next = 0;  // of the reductions
  for (int piece = 0; piece < op.pieces; ++piece) {
    if (op.gathers) {
      if (gather_places_.size() <= used_) {
        double asked = 0;
        for (const Member& member : members_) asked = std::max(asked, member.now);
        ask_gathers(used_ + 1, asked);
      }
      wait_for_ = std::max(wait_for_, gather_places_[used_++]);
    }
    const double there = ran_[wait_for_].end;
    double latest = 0, spread = 0;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      Member& member = members_[m];
      const double begin = std::max(member.now, there);
      member.exposed += begin - member.now;
      latest = std::max(latest, begin);
      double takes = seconds[m] * share;
      if (interference_ > 0) {
        // The piece before has been charged when it began; this one pays for what ran beside it.
        member.exposed += member.debt;
        takes += member.debt;
        member.debt = 0;
      }
      member.began = begin;
      member.now = begin + takes;
      spread = std::max(spread, member.now);
    }
    if (op.gathers && prefetch_ > 0) ask_gathers(used_ + prefetch_, latest);
    for (; next < n; ++next) {
      const double part = part_of_piece(reduces.ready(next), piece, op.pieces);
      if (part > 1) break;
      double ready = spread;
      if (part < 1) {
        ready = 0;
        for (const Member& member : members_) {
          ready = std::max(ready, member.began + (member.now - member.began) * part);
        }
      }
      announce(ready, reduces.each(next).seconds);
    }
    if (interference_ > 0) {
      for (Member& member : members_) {
        const double before = running(member, member.began);
        member.debt = interference_ * (running(member, member.now) - before);
      }
    }
  }
  if (!op.blocking) return;
  double ready = 0;
  for (const Member& member : members_) ready = std::max(ready, member.now);
  for (int i = 0; i < op.reduces; ++i) announce(ready, reduces.each(i).seconds);
  wait_for_ = ran_.size() - 1;
}

void StepClock::reduce_late(const Transfers& reduces) {
  double ready = 0;
  for (const Member& member : members_) ready = std::max(ready, member.now + member.debt);
  for (int i = 0; i < reduces.count; ++i) announce(ready, reduces.each(i).seconds);
}

void StepClock::finish() {
  for (Member& member : members_) {
    const double end = std::max(member.now + member.debt, ran_.back().end);
    member.exposed += end - member.now;
    member.now = end;
    member.debt = 0;
  }
}

}  // namespace tessera::planner
