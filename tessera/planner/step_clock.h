#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/planner/step_ops.h"

namespace tessera::planner {

// [Note: lockstep] The clock of data-parallel ranks that wait for nothing but their collectives.
// All of them do the same operations in the same order, so they are taken piece by piece for all
// members at once, without a queue of events: collective i begins when the last member of its group
// is ready for it and collective i - 1 is over. One member is the closed form of a step without a
// pipeline; many members with times of their own are a simulation of one. With replicas each of
// them is a group, and the sums of a reduction are all-reduced when all of them have it:
// [Note: two queues].
class StepClock {
 public:
  // One member stands for all; otherwise there is one for each data-parallel rank.
  StepClock(std::size_t members, const Step& step, const Places& places);

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
  // down by them: for those of its replica, and for all-reduces over replicas.
  double now(std::size_t member = 0) const { return members_[member].now; }
  DpSeconds exposed(std::size_t member = 0) const { return members_[member].exposed; }

 private:
  struct Member {
    double now = 0;
    DpSeconds exposed;
    DpSeconds debt;           // seconds that collectives beside its last piece have cost it
    double began = 0;         // its present piece
    std::size_t at = 0;       // the collective of its group that ran last before `now`
    std::size_t sums_at = 0;  // the all-reduce over replicas that did
  };
  // When it ran, and how long others had before it.
  struct Ran {
    double begin = 0, end = 0, before = 0;
  };
  using Queue = std::vector<Ran>;  // the first stands for none

  Queue& queue_of(std::size_t member) { return queues_[member / each_]; }
  // Sets ready_ of each group to the largest value of its members.
  template <typename Value>
  void ready_at(const Value& value);
  void announce(double seconds);  // in every group, at its ready_
  void reduce(const Transfers::Each& each);
  void ask_gathers(std::size_t upto);
  void charge_wait(std::size_t member, double until);
  static double running(const Queue& queue, std::size_t& at, double until);

  std::vector<Member> members_;
  std::size_t each_;  // members of a group
  double interference_, replica_interference_;
  std::size_t prefetch_;
  bool replicas_;                           // there are several
  bool shares_links_;                       // with them
  std::vector<Queue> queues_;               // [group]
  Queue sums_;                              // of all groups together
  std::vector<double> ready_;               // [group]
  std::vector<double> gathers_;             // seconds
  std::vector<std::size_t> gather_places_;  // of those asked for, in a queue
  std::size_t used_ = 0;                    // gathers
  std::size_t wait_for_ = 0;                // in a queue
  std::size_t wait_for_sums_ = 0;           // in sums_
};

}  // namespace tessera::planner
