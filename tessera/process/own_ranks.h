#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/process/coordinator.h"

namespace tessera::process {

// Functions for commands that run as ranks of a job, and start the job themselves if no launcher
// did.

// Throws UsageError if --ranks differs from the number of ranks that the launcher started.
void check_given_ranks(std::int64_t given, const std::string& launcher, int started);

// Returns the command line of this process, for the ranks to run.
std::vector<std::string> own_command(int argc, char** argv);

// Ranks that a command starts itself.
struct OwnRanks {
  int ranks = 2;
  int threads = 0;         // threads per rank; 0 divides the cores
  std::string name;        // of the command, part of the run id
  double grace = 5;        // seconds after a failure until SIGTERM to the other ranks
  double stop_grace = 30;  // seconds between a stop signal and SIGKILL
};
// Starts the ranks on this machine with the cores divided as `tessera run` does, and returns the
// job's exit status. After a failure prints one report: the rank that failed on its own, even if
// another exited first, its error, and the errors of the other ranks.
int start_ranks(const OwnRanks& options, std::vector<std::string> command);

// Restart policy of a failed job.
struct Restarts {
  int most = 0;                         // maximum number of restarts
  std::vector<std::string> words;       // arguments appended on a restart
  std::vector<std::string> resume;      // also appended if there is a checkpoint
  std::string otherwise = "the start";  // printed as the starting point if there is no checkpoint
  // Returns the number of ranks to start when `left` are left; 0: do not restart.
  std::function<int(int left)> fit;
  std::function<std::string()> checkpoint;  // returns the last good checkpoint; "" if none
  // Status of ranks that exited cleanly after printing an error that a restart would not fix: no
  // report. 0: no such status.
  int final_status = 0;
  // Called if the job has failed for good or was killed, with one line that names the cause.
  std::function<void(const std::string& why)> on_failure;
  // Returns how a job of that many ranks continues after losses without a restart; nullopt: it does
  // not. Null: no job does.
  std::function<std::optional<RecoveryOptions>(int ranks)> recovery;
  int told_status = -1;  // status of a rank that printed its own error: no report, exit status 1
};
int start_ranks(OwnRanks options, const Restarts& restarts, std::vector<std::string> command);

}  // namespace tessera::process
