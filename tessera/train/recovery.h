#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "tessera/comm/bootstrap.h"
#include "tessera/train/kept_state.h"
#include "tessera/train/session.h"

namespace tessera::train {

// [Note: recovery] With --recover a run continues when ranks are lost, as long as one replica is
// whole: a set of ranks that together hold the complete state, at stage 0 those with one data
// index, otherwise those with one index along dp_replicate.
//
// 1. A rank whose collective fails keeps its trainer and waits for the next generation
//    ([Note: generations] in comm/generation.h), whose members are the whole replicas.
// 2. The members connect and compare their progress. If a member has the outcome of the step in
//    which the loss occurred, all make its update: [Note: decided steps]. Otherwise no member has,
//    and all discard the step. Then all have the same number of steps.
// 3. Each rank copies its shards, destroys its trainer, makes one for the new mesh and copies the
//    shards back. Shards do not depend on the number of replicas. Ranks without state get it from
//    those of the first replica that has it.
// 4. Training continues with the sample after the last finished step. The global batch does not
//    change: replicas make more micro-batches. So each step uses exactly the samples that it would
//    have used without the loss, and a run with the same replicas at the same steps has the same
//    bits.
//
// A replacement waits for a generation with it. The members of the current one notice that
// generation after a step, and all leave the current one at the same step.

// State of a rank that passes from one generation to the next, and the rank's side of step 2 and 3.
class HandOver {
 public:
  // Collective over `world`. Compares the progress of all ranks, and makes or discards a step that
  // was interrupted. `config` is that of the new mesh. Frees the trainer of the last generation.
  // Returns false if no rank has state, at the start of a run. Throws Error if some rank should
  // have (`trained`), but no replica has.
  bool prepare(const RunConfig& config, const Resolved& resolved, const comm::Group& world,
               bool trained);
  // Collective. Gives the state to the new trainer. Afterwards the trainer has it.
  void give_to(Trainer& trainer, const comm::Group& world);
  // The run starts: the trainer has the state.
  void start() { is_established = true; }
  // This rank is not in the next generation: its state becomes stale.
  void drop();

  // Seconds since the end of the last finished step of this rank; nullopt if there was none.
  std::optional<double> pause() const;
  void note_step() { last_step_ = Clock::now(); }
  // True if a step or a save of a member was interrupted, rather than a planned change.
  bool was_interrupted() const { return was_interrupted_; }

  // Trainer of the current generation. It holds the state if `is_established`.
  std::unique_ptr<Trainer> trainer;
  bool is_established = false;
  bool is_interrupted = false;  // the last generation ended with an error

 private:
  using Clock = std::chrono::steady_clock;

  std::optional<KeptState> kept_;
  bool holds_state_ = false;  // kept_ has shards
  int source_ = 0;            // replica that has the state
  bool sends_ = false;        // some replica does not
  bool was_interrupted_ = false;
  std::optional<Clock::time_point> last_step_;
};

// Inputs of run_session() for one generation of a run.
struct SessionRecovery {
  HandOver& state;
  const comm::Generation& generation;
  std::function<void()> established;    // called when all members have the state
  std::function<bool()> is_superseded;  // returns true if a later generation was published
};

// Runs sessions, one for each generation with this process. `joined` is called after the first
// rendezvous, and before the process waits to become a member. Throws the last error if the job
// cannot continue.
Ended run_recoverable(const RunConfig& config, const Resolved& resolved, comm::InitOptions init,
                      const std::function<void()>& joined, const RunRequests& requests,
                      const SessionNotes& notes);

// Returns the configuration of the same run with another number of replicas.
RunConfig with_replicas(const RunConfig& config, const Resolved& resolved, int replicas);

}  // namespace tessera::train
