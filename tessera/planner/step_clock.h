#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/planner/step_program.h"

namespace tessera::planner {

// [Note: lockstep] Clock of data-parallel ranks that wait only for their collectives. All of them
// run the same operations in the same order, so the clock advances all members piece by piece,
// without an event queue: collective i begins when the last member of its group is ready for it and
// collective i - 1 is done. With one member it is the closed form of a step without a pipeline.
// With many members, each with its own times, it simulates such a step. Each replica is a group;
// the sums of a reduction are all-reduced when all replicas have them: [Note: two queues].
class StepClock {
 public:
  // `members`: 1 to represent all data-parallel ranks, or one per rank.
  StepClock(std::size_t members, const Step& step, const Places& places);

  // Reserves memory for this many collectives. A step has hundreds, which dominate its running
  // time.
  void reserve(std::size_t gathers, std::size_t reductions);
  // Announces gathers that operations will wait for, in order. Call it before the operations; with
  // prefetch, at least one gather ahead.
  void expect_gathers(int count, double seconds);
  void start(const StepStart& start);
  // Runs an operation. `reduces`: reductions of its gradients. `seconds`: duration of the whole
  // operation for each member.
  void run(const StepOp& op, const Transfers& reduces, const double* seconds);
  // Blocks the only member until `time`, when a message arrives.
  void wait_until(double time) { members_.front().now = std::max(now(), time); }
  // Runs reductions after all computation.
  void reduce_late(const Transfers& reduces);
  void finish();

  // Return the time that a member has reached, and the part of it spent waiting for collectives or
  // slowed down by them: those of its replica, and all-reduces over replicas.
  double now(std::size_t member = 0) const { return members_[member].now; }
  DpSeconds exposed(std::size_t member = 0) const { return members_[member].exposed; }

 private:
  struct Member {
    double now = 0;
    DpSeconds exposed;
    DpSeconds debt;           // slowdown by collectives during its last piece, not yet charged
    double began = 0;         // start of its current piece
    std::size_t at = 0;       // index of its group's last collective that began before `now`
    std::size_t sums_at = 0;  // the same for all-reduces over replicas
  };
  // Interval in which a collective ran, and total duration of the collectives before it.
  struct Ran {
    double begin = 0, end = 0, before = 0;
  };
  using Queue = std::vector<Ran>;  // the first entry is a placeholder

  Queue& queue_of(std::size_t member) { return queues_[member / each_]; }
  // Sets ready_ of each group to the largest value of its members.
  template <typename Value>
  void ready_at(const Value& value);
  void announce(double seconds);  // appends to every group's queue, from ready_ on
  void reduce(const Transfers::Each& each);
  void ask_gathers(std::size_t upto);
  void charge_wait(std::size_t member, double until);
  static double running(const Queue& queue, std::size_t& at, double until);

  std::vector<Member> members_;
  std::size_t each_;  // number of members in a group
  double interference_, replica_interference_;
  std::size_t prefetch_;
  bool replicas_;                           // more than one replica
  bool shares_links_;                       // Step::shares_links()
  std::vector<Queue> queues_;               // [group]
  Queue sums_;                              // all-reduces over replicas, of all groups
  std::vector<double> ready_;               // [group]
  std::vector<double> gathers_;             // seconds
  std::vector<std::size_t> gather_places_;  // queue index of each issued gather
  std::size_t used_ = 0;                    // number of gathers waited for
  std::size_t wait_for_ = 0;                // index in a queue
  std::size_t wait_for_sums_ = 0;           // index in sums_
};

}  // namespace tessera::planner
