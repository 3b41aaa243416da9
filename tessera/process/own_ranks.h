#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::process {

// For commands that are ranks of a job, and start the job themselves where no launcher did.

// Throws UsageError if a --ranks that was given is not what a launcher has started.
void check_given_ranks(std::int64_t given, const std::string& launcher, int started);

// This very command once more, for the ranks to run.
std::vector<std::string> own_command(int argc, char** argv);

struct OwnRanks {
  int ranks = 2;
  int threads = 0;         // of each; 0 is its share of the cores
  std::string name;        // of the command, in the run's identity
  double grace = 5;        // seconds that the others get to end by themselves after a failure
  double stop_grace = 30;  // seconds that all get after a signal to end
};
// Starts them on this machine, divided as `tessera run` does, and returns the job's exit status.
// After a failure one report says which rank failed and how, and what the others saw of it. It
// names a rank that failed by itself, whichever of them ended first.
int start_ranks(const OwnRanks& options, std::vector<std::string> command);

// How often, and as what, a job that failed is started again.
struct Restarts {
  int most = 0;
  std::vector<std::string> words;       // that the command gets then
  std::vector<std::string> resume;      // and these, if there is a checkpoint
  std::string otherwise = "the start";  // where it begins if there is none
  // How many ranks to start when so many are left; 0: not again.
  std::function<int(int left)> fit;
  std::function<std::string()> checkpoint;  // the last good one, "" for none
  // Of ranks that ended in order and said what is wrong, which a new start would not mend: no
  // report. 0: there is none.
  int final_status = 0;
  int told_status = -1;  // of a rank that has said itself what is wrong: no report, and status 1
};
int start_ranks(OwnRanks options, const Restarts& restarts, std::vector<std::string> command);

// Only MPI's own launcher can start ranks that use MPI: becomes it.
int become_mpirun(int ranks, const std::vector<std::string>& command);

}  // namespace tessera::process
