#pragma once

#include <array>
#include <vector>

#include "tessera/planner/step_program.h"
#include "tessera/simulator/network.h"

#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

using planner::Op;
using planner::RankProgram;

// Simulation of a step by events.
//
// [Note: the run]
// A worker is one replica's pipeline rank. Its neighbors along tp and cp run in lockstep with it,
// at the pace of the slowest of them. A worker executes its operations in order: it computes piece
// by piece, sends without waiting, and waits for messages and gathers that have not arrived. The dp
// group of a pipeline rank runs its collectives one after another, in the order in which all
// members request them; each begins when the last member is ready. The end of a piece is known when
// it begins, so gradients are announced at that time, with the time at which they will be ready.
// This saves an event for each. Collectives that run during a piece make the next piece longer:
// `interference`.
//
// With replicas (hybrid sharding) the members of a pipeline rank form several groups of workers
// that share state, and each group has its own queue. When all groups have reduced a bucket, its
// sums are all-reduced over the replicas, in a queue for each pipeline rank: [Note: two queues].
//
// [Note: replica by replica] Replicas interact only in collectives, and a collective does not begin
// before all members are ready. So while no collective is requested, each replica can be simulated
// separately until the first time at which one of its workers is ready for a collective:
// `horizon_`. Its few events and workers stay in the processor's caches; those of all replicas, in
// the order of time, would not. The remaining events are then handled in the order of time.
class Run {
 public:
  Run(const Scenario& scenario, int replicas, const Options& options);
  Result result();

 private:
  enum class State : std::uint8_t { moving, receiving, gathering, finishing, done };
  struct Worker {
    int p = 0;              // pipeline rank
    std::uint32_t op = 0;   // index of the current operation
    int piece = 0;          // index of the current piece in the operation
    int reduced = 0;        // reductions that the current operation has announced
    int computed = 0;       // operations done; index of the next random number
    int announced = 0;      // collectives requested
    int gathers_asked = 0;  // gathers requested
    int gathers_used = 0;
    int reductions = 0;     // reductions requested
    int wait_for = 0;       // number of collectives that must be done before it may compute
    int wait_for_sums = 0;  // same for all-reduces over replicas
    double piece_seconds = 0;
    double beside = 0;        // total run time of its group's collectives when the piece began
    double sums_beside = 0;   // same for all-reduces over replicas
    planner::DpSeconds debt;  // slowdown by collectives during the last piece, in seconds
    double since = 0;         // time at which it began to wait, or finished
    double shards_done = 0;   // time at which the collectives of its group that it waits for ended
    State state = State::moving;
    RankTime time;
  };
  struct Collective {
    int missing = 0;   // members that have not requested it yet
    double ready = 0;  // time at which the last of the others is ready
    int chunk = 0;
    bool gather = false;
    int which = 0;  // index in the chunk's reductions
    int sums = 0;   // number of all-reduces over replicas requested before it
    double began = 0, ended = 0;
  };
  struct Group {
    std::vector<Collective> collectives;
    std::vector<int> gathers;  // indices of the gathers
    int done = 0;
    bool busy = false;  // a collective is running or scheduled to begin
    bool running = false;
    double began = 0;
    double ran = 0;    // total seconds of finished collectives
    int underway = 0;  // groups whose links the running collective still crosses
    // Total run time of collectives until `now`.
    double running_until(double now) const { return ran + (running ? now - began : 0); }
    // Run time of finished collectives in this interval.
    double ran_between(double from, double until) const;
  };
  struct Message {
    std::uint32_t to = 0;
    std::uint32_t channel = 0;
    double sent = 0;
    double latency = 0;
  };

  void start();
  void play_replicas();
  bool between_collectives() const;
  int replica_of(const Event& event) const;
  void handle(const Event& event);
  void advance(std::uint32_t w, double now);
  // Each returns false if the worker must wait or has become busy.
  bool begin_piece(std::uint32_t w, const Op& op, double now);
  bool receive(std::uint32_t w, const Op& op, double now);
  void send(std::uint32_t w, const Op& op, double now);
  void begin_op(Worker& worker, std::uint32_t w, const Op& op);
  void announce_reduces(std::uint32_t w, const Op& op, double now);
  void finish(std::uint32_t w, double now);
  void sum_tied();

  void arrived(std::uint32_t flow, double now);
  void ask_gathers(std::uint32_t w, int upto, double now);
  void announce(std::uint32_t w, double ready, int chunk, bool gather, int which, double now);
  void plan_collective(int g, double now);
  void begin_collective(int g, double now);
  void end_collective(int g, double now);
  void ask_sums(int p, const Collective& reduction, double now);
  void wake(std::uint32_t w, double now);
  void begin_wait(std::uint32_t w, double now);
  static void charge(Worker& worker, const planner::DpSeconds& seconds) {
    worker.time.comm[Axis::dp_shard] += seconds.shards;
    worker.time.comm[Axis::dp_replicate] += seconds.across;
  }
  const Load& load(int g, const Collective& collective) const;

  std::size_t channel(std::uint32_t w, int chunk, bool gradient) const {
    return (static_cast<std::size_t>(w) * static_cast<std::size_t>(schedule_.chunks) +
            static_cast<std::size_t>(chunk)) *
               2 +
           (gradient ? 1 : 0);
  }
  const RankProgram& program(const Worker& worker) const {
    return programs_[static_cast<std::size_t>(worker.p)];
  }
  // groups_ has the groups that share state first, by pipeline rank, and then for each pipeline
  // rank the group of its all-reduces over replicas.
  int stages() const { return static_cast<int>(programs_.size()); }
  int shard_groups() const { return stages() * parts_; }
  bool sums_up(int g) const { return g >= shard_groups(); }
  int stage_of_group(int g) const { return sums_up(g) ? g - shard_groups() : g / parts_; }
  Group& group(std::uint32_t w) { return groups_[w / static_cast<std::uint32_t>(members_)]; }
  Group& sums(int p) { return groups_[static_cast<std::size_t>(shard_groups() + p)]; }
  // Returns true if the collectives that a worker waits for are done.
  bool collectives_done(const Worker& worker, const Group& own) {
    return own.done >= worker.wait_for && sums(worker.p).done >= worker.wait_for_sums;
  }
  bool traced(std::uint32_t w) const {
    return static_cast<int>(w) % replicas_ * stages() + static_cast<int>(w) / replicas_ < traced_;
  }
  void record(std::uint32_t w, Span::Lane lane, const char* what, int micro, int chunk,
              double begin, double end) {
    if (traced(w)) spans_.push_back({static_cast<int>(w), lane, what, micro, chunk, begin, end});
  }

  const Scenario& s_;
  schedule::Schedule schedule_;
  planner::Places places_;
  planner::RankStrides strides_;
  int replicas_;  // number of simulated data-parallel ranks
  int parts_;     // number of groups of them that share state
  int members_;   // size of such a group
  bool shares_links_;
  int traced_;
  std::vector<RankProgram> programs_;  // [pipeline rank]
  struct Loads {
    Load gather;
    std::vector<Load> reduce;  // [size]
    std::vector<Load> across;  // [size]
  };
  std::vector<std::vector<Loads>> loads_;  // [pipeline rank][chunk]
  std::array<Load, 2> hop_;                // [level]
  EventQueue queue_;
  Network network_;
  std::vector<Worker> workers_;  // [p · replicas + d]
  std::vector<Group> groups_;
  std::vector<int> waiting_;       // [channel]: messages that arrived and were not received yet
  std::vector<Message> messages_;  // [flow]
  std::vector<double> slow_;       // [rank]; empty if there are no stragglers
  double horizon_ = 0;             // earliest time at which an announced collective is ready
  std::vector<Span> spans_;
};

}  // namespace tessera::simulator
