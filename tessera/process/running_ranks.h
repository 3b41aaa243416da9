#pragma once

#include <sys/types.h>

#include <vector>

#include "tessera/process/rank_process.h"

namespace tessera::process {

struct Rank {
  int number = 0;  // in the whole job
  pid_t pid = -1;
  bool running = false;
  bool exited_by_signal = false;
  int code = 0;  // exit status or signal
  double ended_at = 0;
  bool had_to_end = false;  // it was sent SIGTERM or SIGKILL, since another one had failed

  bool failed() const { return !running && code != 0; }
  int status() const { return exited_by_signal ? 128 + code : code; }
};

// The processes of the ranks of this node, each with what it has started: they are sent signals and
// waited for.
class RunningRanks {
 public:
  explicit RunningRanks(int most);

  // 0, or the errno with which the program could not be executed: then nothing runs.
  int start(int number, const ProcessSpec& spec);

  const std::vector<Rank>& all() const { return ranks_; }  // which stay where they are
  int running() const;

  void send(int signal) const;         // to those that run, alone
  void send_groups(int signal) const;  // and to what they have started
  // Asks those that run to end, or ends them.
  void terminate();
  void kill();

  // Those that have ended since the last call, at the time `now`. What they have started ends too.
  std::vector<const Rank*> reap(double now);

 private:
  Guard guard_;
  std::vector<Rank> ranks_;
};

}  // namespace tessera::process
