#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/planner/step_ops.h"

namespace tessera::planner {

// [Note: lockstep] The clock of a dp group whose members wait for nothing but its collectives. All
// of them do the same operations in the same order, so they are taken piece by piece for all
// members at once, without a queue of events: collective i begins when the last member is ready
// for it and collective i - 1 is over. One member is the closed form of a step without a pipeline;
// many members with times of their own are a simulation of one.
class StepClock {
 public:
  StepClock(std::size_t members, double interference, int prefetch);

  // Room for so many, told ahead: a step has hundreds, and most of its time is theirs.
  void reserve(std::size_t gathers, std::size_t reductions);
  // Gathers that operations will wait for, in their order: told ahead of them, by one at least
  // where the next one is asked for early.
  void expect_gathers(int count, double seconds);
  void start(const StepStart& start);
  // `reduces`: of the operation's gradients; `seconds`: of each member for the whole operation.
  void run(const StepOp& op, const Transfers& reduces, const double* seconds);
  // A message that the only member needs comes then.
  void wait_until(double time) { members_.front().now = std::max(now(), time); }
  // Reductions after all computation.
  void reduce_late(const Transfers& reduces);
  void finish();

  // The end of what a member has done, and how much of that it waited for collectives or was slowed
  // down by them.
  double now(std::size_t member = 0) const { return members_[member].now; }
  double exposed(std::size_t member = 0) const { return members_[member].exposed; }

 private:
  struct Member {
    double now = 0;
    double exposed = 0;
    double debt = 0;     // seconds that collectives beside its last piece have cost it
    double began = 0;    // its present piece
    std::size_t at = 0;  // the collective that ran last before `now`
  };
  // When it ran, and how long others had before it.
  struct Ran {
    double begin = 0, end = 0, before = 0;
  };

  void announce(double ready, double seconds) {
    const Ran last = ran_.back();
    const double begin = std::max(last.end, ready);
    ran_.push_back({begin, begin + seconds, last.before + (last.end - last.begin)});
  }
  void ask_gathers(std::size_t upto, double ready);
  double running(Member& member, double until) const;

  std::vector<Member> members_;
  double interference_;
  std::size_t prefetch_;
  std::vector<Ran> ran_;                    // the first stands for none
  std::vector<double> gathers_;             // seconds
  std::vector<std::size_t> gather_places_;  // of those asked for, in ran_
  std::size_t used_ = 0;                    // gathers
  std::size_t wait_for_ = 0;                // in ran_
};

}  // namespace tessera::planner
