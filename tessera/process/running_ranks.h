#pragma once

#include <sys/types.h>

#include <vector>

#include "tessera/process/rank_process.h"

namespace tessera::process {

// Process of one rank.
struct Rank {
  int number = 0;  // global rank
  pid_t pid = -1;
  bool running = false;
  bool exited_by_signal = false;
  int code = 0;  // exit status or signal
  double ended_at = 0;
  bool terminated = false;  // by terminate() or kill()
  bool excused = false;     // by excuse()

  bool failed() const { return !running && code != 0 && !excused; }
  int status() const { return exited_by_signal ? 128 + code : code; }
};

// Processes of this node's ranks, including their descendants.
class RunningRanks {
 public:
  explicit RunningRanks(int most);

  // Starts a rank. Returns 0, or the errno of a failed exec; then no process runs.
  int start(int number, const ProcessSpec& spec);
  // The same for a rank that has ended, which the new process replaces in all().
  int restart(int number, const ProcessSpec& spec);
  // The end of the rank does not count as a failure.
  void excuse(int number);

  const std::vector<Rank>& all() const { return ranks_; }  // elements are never moved
  int running() const;

  void send(int signal) const;         // to running ranks, not to their descendants
  void send_groups(int signal) const;  // to running ranks and their descendants
  // Sends SIGTERM, or SIGKILL, to running ranks and their descendants.
  void terminate();
  void kill();

  // Returns the ranks that exited since the last call and kills their descendants. `now` becomes
  // their ended_at.
  std::vector<const Rank*> reap(double now);

 private:
  Rank& find(int number);

  Guard guard_;
  std::vector<Rank> ranks_;
};

}  // namespace tessera::process
