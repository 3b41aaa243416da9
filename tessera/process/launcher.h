#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::process {

struct LaunchOptions {
  std::vector<std::string> command;  // the program and its arguments
  int ranks = 1;                     // on this node
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";  // of node 0
  int master_port = 0;                    // there, for torch.distributed
  std::string run_id = "tessera";         // the same on every node
  std::string store;                      // address:port of the job's store, "" without one
  int secret_fd = -1;                     // holds the job's secret, for the ranks to inherit
  std::string interface;                  // at which ranks listen for other nodes; "" leaves it
  std::string run() const { return run_id + "/0"; }  // as the ranks call it: nothing restarts here
  std::string name = "tessera run";                  // before what the launcher itself says

  int threads = 1;                     // OMP_NUM_THREADS of each rank; 0 leaves the variable alone
  std::vector<std::vector<int>> cpus;  // processors of each rank; empty leaves it unbound

  bool report = true;     // print the summary
  bool prefix = true;     // put "[rank] " before each line; false hands our own output to the ranks
  bool color = true;      // colour the prefixes where the output is a terminal
  double grace = 5;       // seconds that the others get to end by themselves after a failure
  double term_grace = 5;  // seconds between the SIGTERM of that and SIGKILL
  double stop_grace = 30;  // seconds between a signal to us to end and SIGKILL
  double timeout = 0;      // seconds for the whole run; 0 is no limit

  // Called once, when the first rank has failed; `how` is a line that names it. Rendezvous tells
  // those who wait for it to join.
  std::function<void(int rank, const std::string& how)> on_failure{};

  std::vector<std::string> environment;  // what the ranks inherit, NAME=value
  int in = 0, out = 1, err = 2;          // our own standard descriptors, to be replaced in tests
};

// How a rank failed that nobody had ended.
struct RankFailure {
  int rank = -1;   // in the numbering of the whole job
  int status = 0;  // 128 + signal
  bool by_signal = false;
  std::string summary;  // one line
};

struct LaunchResult {
  int status = 0;        // of the rank that failed first (128 + signal), 124 after the timeout
  int failed_rank = -1;  // in the numbering of the whole job
  std::string summary;   // one line, "" after a success; LaunchOptions::report prints it
  bool asked = false;    // somebody sent the launcher a signal to end
  std::vector<RankFailure> failures = {};  // of all ranks, in the order in which they ended
};

// The environment of one rank: what it inherits, and the variables that torchrun sets, so that a
// program that joins through torch.distributed's env:// works as well.
std::vector<std::string> rank_environment(const LaunchOptions& options, int local_rank);

// "SIGKILL" for 9, "signal 64" for one without a name.
std::string signal_name(int signal);

// Blocks the signals that launch() handles, in this thread and those it starts from now on. Threads
// that are there already, or that unblock them (a GPU's driver has one), may get such a signal
// instead: they pass it on to this one. One at a time in a process.
class BlockedSignals {
 public:
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  const sigset_t& handled() const { return handled_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t handled_;
  sigset_t before_;
  std::vector<std::pair<int, struct sigaction>> actions_before_;
};

// Throws an Error unless so many ranks can be started with the open files that this process may
// have. Made before anything else of the job: what lacks a descriptor later may end without a word.
void check_open_files(int ranks);

// Starts the ranks, relays their output, forwards signals, and returns when all have ended:
// - SIGINT, SIGTERM, SIGHUP and SIGQUIT go to the ranks' process groups. Those that are there after
//   `stop_grace` are killed and named; a second signal kills at once. SIGUSR1 and SIGUSR2 to the
//   ranks themselves; Ctrl-Z stops and continues all.
// - When a rank fails, the others get `grace` to report it themselves, then SIGTERM, then SIGKILL.
// - Nothing stays behind, even when the launcher is killed: see [Note: guard].
// A program that cannot be found gives status 127, one that cannot be executed 126.
LaunchResult launch(const LaunchOptions& options, const BlockedSignals& signals);

}  // namespace tessera::process
