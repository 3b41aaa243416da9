#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "tessera/comm/generation.h"

namespace tessera::process {

// Description of a job that continues when processes are lost: [Note: generations] in
// comm/generation.h.
struct RecoveryOptions {
  int most = 0;    // maximum number of losses to recover from
  int spares = 0;  // processes beyond those of the replicas, which wait to replace a lost one
  // Processes of each replica, by their position in it. A replica is the smallest set of processes
  // that hold the complete state.
  std::vector<std::vector<int>> replicas;
  // Returns the number of replicas to continue with if `whole` are whole; 0: the job ends.
  std::function<int(int whole)> fit;
  // Returns the processes by rank, for a mesh with these replicas.
  std::function<std::vector<int>(const std::vector<std::vector<int>>& replicas)> by_rank;

  int processes() const;
};

// Decides the members of each generation of a job. Only whole replicas are members. When a process
// is lost, the next generation has the replicas that are still whole, in the same order. The other
// processes of a broken replica and the started replacement report that they are ready; when the
// replica is whole again, a further generation has it at the end, unless the current one is still
// being established.
//
// Not thread-safe. It starts and ends no process.
class Coordinator {
 public:
  explicit Coordinator(RecoveryOptions options);

  const comm::Generation& current() const { return current_; }
  int losses() const { return losses_; }
  int most_losses() const { return options_.most; }
  int replicas() const { return static_cast<int>(options_.replicas.size()); }

  // Result of an event. `next`: current() is another generation. `failed`: the job cannot continue.
  enum class Change : std::uint8_t { none, next, failed };
  // A process has ended before training is over.
  Change lost(int process);
  Change ready(int process);
  Change established(int process, std::int64_t generation);
  // The members could not connect, and none of them is the cause: forms them again.
  Change retry() { return current_.over ? Change::none : regroup(true); }
  // Training is over.
  Change finish();

 private:
  enum class Place : std::uint8_t { absent, ready, member };

  Change regroup(bool is_forced);
  bool is_all(int replica, Place place) const;
  bool has_state(int replica) const;
  void dismiss(int replica);

  const RecoveryOptions options_;
  std::vector<std::vector<int>> seats_;  // processes of each replica now
  std::vector<Place> places_;            // by process
  std::vector<bool> has_state_;          // by process
  std::vector<int> order_;               // replicas of the current generation
  std::set<int> established_;            // members that have reported it
  comm::Generation current_;
  bool trained_ = false;
  int losses_ = 0;
};

}  // namespace tessera::process
