#pragma once

#include <array>
#include <vector>

#include "tessera/planner/step_program.h"
#include "tessera/simulator/events.h"
#include "tessera/simulator/network.h"

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

using planner::Op;
using planner::Program;

// [Note: the run]
// A worker is one replica's pipeline rank; its tp neighbours move in step with it, at the pace of
// the slowest of them. It takes its operations in order: it computes piece by piece, sends without
// waiting, and waits where a message or a gather is not there yet. The dp group of a pipeline rank
// runs its collectives one after another, in the order in which all members ask for them; one
// begins when the last member is ready. When a piece begins, its end is known, so gradients are
// announced then with the time at which they will be ready: that saves an event for each. What ran
// beside a piece makes the next one longer: `interference`.
//
// With replicas (hybrid sharding) the members of a pipeline rank are several groups of workers that
// share state, and each group has a queue of its own. When all groups have reduced a bucket its
// sums are all-reduced over the replicas, in a queue for each pipeline rank: [Note: two queues].
//
// [Note: replica by replica] Replicas meet in collectives alone, and one of them begins no sooner
// than any member is ready. So while no collective is under way, each replica can be played for
// itself until the first moment at which one of its workers is ready for the next: `horizon_`. Its
// few events and workers stay in the processor's caches, where those of all replicas in the order
// of time do not. What is left then goes on in the order of time.
class Run {
 public:
  Run(const Scenario& scenario, int replicas, const Options& options);
  Result result();

 private:
  enum class State : std::uint8_t { moving, receiving, gathering, finishing, done };
  struct Worker {
    int p = 0;
    std::uint32_t op = 0;
    int piece = 0;
    int reduced = 0;        // reductions that the present operation has announced
    int computed = 0;       // operations, to count the random numbers
    int announced = 0;      // collectives
    int gathers_asked = 0;  // of those, gathers
    int gathers_used = 0;
    int reductions = 0;     // of those announced
    int wait_for = 0;       // collectives that must be done before it may compute
    int wait_for_sums = 0;  // all-reduces over replicas, likewise
    double piece_seconds = 0;
    double beside = 0;        // how long its group's collectives had run when the piece began
    double sums_beside = 0;   // and all-reduces over replicas
    planner::DpSeconds debt;  // seconds that those beside the last piece have cost
    double since = 0;         // when it began to wait, or was through
    double shards_done = 0;   // when its group's collectives that it waits for were done
    State state = State::moving;
    RankTime time;
  };
  struct Collective {
    int missing = 0;   // members that have not asked for it yet
    double ready = 0;  // when the last of the others is
    int chunk = 0;
    bool gather = false;
    int which = 0;  // of the chunk's reductions
    int sums = 0;   // all-reduces over replicas that are asked for before it
    double began = 0, ended = 0;
  };
  struct Group {
    std::vector<Collective> collectives;
    std::vector<int> gathers;  // which of them are
    int done = 0;
    bool busy = false;  // one is under way or about to begin
    bool running = false;
    double began = 0;
    double ran = 0;    // seconds, of those that are done
    int underway = 0;  // of an all-reduce over replicas: groups whose links are still crossed
    double running_until(double now) const { return ran + (running ? now - began : 0); }
    // Seconds that those that are done ran in this time.
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
  const Program& program(const Worker& worker) const {
    return programs_[static_cast<std::size_t>(worker.p)];
  }
  // Groups that share state come first, those of one pipeline rank one after another; then the
  // all-reduces over replicas of each pipeline rank.
  int shard_groups() const { return s_.pp() * parts_; }
  bool sums_up(int g) const { return g >= shard_groups(); }
  int stage_of_group(int g) const { return sums_up(g) ? g - shard_groups() : g / parts_; }
  Group& group(std::uint32_t w) { return groups_[w / static_cast<std::uint32_t>(members_)]; }
  Group& sums(int p) { return groups_[static_cast<std::size_t>(shard_groups() + p)]; }
  // The collectives that a worker waits for are done.
  bool there(const Worker& worker, const Group& own) {
    return own.done >= worker.wait_for && sums(worker.p).done >= worker.wait_for_sums;
  }
  bool traced(std::uint32_t w) const {
    return static_cast<int>(w) % replicas_ * s_.pp() + static_cast<int>(w) / replicas_ < traced_;
  }
  void record(std::uint32_t w, Span::Lane lane, const char* what, int micro, int chunk,
              double begin, double end) {
    if (traced(w)) spans_.push_back({static_cast<int>(w), lane, what, micro, chunk, begin, end});
  }

  const Scenario& s_;
  schedule::Schedule schedule_;
  planner::Places places_;
  planner::RankStrides strides_;
  int replicas_;  // data-parallel ranks that are simulated
  int parts_;     // groups of them that share state
  int members_;   // of such a group
  bool shares_links_;
  int traced_;
  std::vector<Program> programs_;  // [pipeline rank]
  struct Loads {
    Load gather;
    std::vector<Load> reduce;  // [size]
    std::vector<Load> across;  // likewise
  };
  std::vector<std::vector<Loads>> loads_;  // [pipeline rank][chunk]
  std::array<Load, 2> hop_;                // [level]
  EventQueue queue_;
  Network network_;
  std::vector<Worker> workers_;  // [p · replicas + d]
  std::vector<Group> groups_;
  std::vector<int> waiting_;       // [channel]: messages that are there and not taken yet
  std::vector<Message> messages_;  // [flow]
  std::vector<double> slow_;       // [rank]; empty if all are alike
  double horizon_ = 0;             // earliest moment that something announced was ready at
  std::vector<Span> spans_;
};

}  // namespace tessera::simulator
