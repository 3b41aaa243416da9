#pragma once

#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/generation.h"
#include "tessera/process/coordinator.h"

namespace tessera::process {

// Continues a job after the loss of ranks instead of ending it: [Note: generations]. Only on one
// node. Rendezvous sets the functions.
struct Recovery {
  std::shared_ptr<Coordinator> coordinator;
  std::function<void(const comm::Generation& generation)> publish{};
  int reports_fd = -1;  // readable when there are reports
  std::function<std::vector<comm::MemberReport>()> take_reports{};
};

// Options of one launch() on this node.
struct LaunchOptions {
  std::vector<std::string> command;  // the program and its arguments
  int ranks = 1;                     // on this node
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";  // address of node 0
  int master_port = 0;                    // on node 0, for torch.distributed; 0 picks a free port
  std::string run_id = "tessera";         // must be equal on all nodes
  std::string store;                      // address:port of the job's store; "" if there is none
  int secret_fd = -1;     // inherited by the ranks, contains the job's secret; -1: none
  std::string interface;  // on which ranks listen for other nodes; "" keeps the default
  std::string run() const { return run_id + "/0"; }  // run name used by the ranks; 0 restarts
  std::string name = "tessera run";                  // prefix of the launcher's own messages

  int threads = 1;                     // OMP_NUM_THREADS of each rank; 0 keeps the inherited value
  std::vector<std::vector<int>> cpus;  // CPUs that each rank is bound to; empty: not bound

  bool report = true;      // print the summary
  bool prefix = true;      // put "[rank] " before each line; false: ranks inherit our output
  bool color = true;       // color the prefixes if the output is a terminal
  double grace = 5;        // seconds after a failure until SIGTERM to the other ranks
  double term_grace = 5;   // seconds between that SIGTERM and SIGKILL
  double stop_grace = 30;  // seconds between a stop signal to the launcher and SIGKILL
  double timeout = 0;      // seconds for the whole run; 0: no limit

  // Called once, when the first rank fails; `how` is one line that names it. Rendezvous uses it to
  // notify ranks that wait for it to join.
  std::function<void(int rank, const std::string& how)> on_failure{};
  Recovery recovery{};  // without a coordinator the first failure ends the job

  std::vector<std::string> environment;  // inherited by the ranks, NAME=value
  int in = 0, out = 1, err = 2;          // standard descriptors; replaced in tests
};

// Failure of a rank that the launcher had not terminated.
struct RankFailure {
  int rank = -1;   // global rank
  int status = 0;  // exit status, or 128 + signal
  bool by_signal = false;
  std::string summary;  // one line
};

struct LaunchResult {
  int status = 0;        // of the first rank that failed (128 + signal); 124 after a timeout
  int failed_rank = -1;  // global rank; -1: none
  std::string summary;   // one line; "" after success. Printed if LaunchOptions::report
  bool asked = false;    // the launcher received a stop signal
  std::vector<RankFailure> failures = {};  // of all ranks, in the order in which they exited
};

// Returns the environment of one rank: the inherited variables plus those that torchrun sets, so
// that programs that use torch.distributed's env:// work too.
std::vector<std::string> rank_environment(const LaunchOptions& options, int local_rank);

// Returns "SIGKILL" for 9, "signal 64" for a signal without a name.
std::string signal_name(int signal);

// Blocks the signals that launch() handles, in this thread and in threads it starts later. Other
// threads (already running, or unblocking signals as a GPU driver's thread does) may receive such a
// signal instead; the installed handlers forward it to this thread. At most one instance per
// process.
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

// Throws Error if the limit on open files is too low for `ranks` ranks. Call it before anything
// else of the job is created: code that runs out of descriptors later may die without a message.
void check_open_files(int ranks);

// Starts the ranks, relays their output, forwards signals, and returns when all ranks have exited:
// - SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the ranks' process groups. Ranks still
//   running after `stop_grace` are killed and reported; a second signal kills at once. SIGUSR1 and
//   SIGUSR2 are sent to the ranks alone. Ctrl-Z stops and continues all processes.
// - When a rank fails, the others get `grace` seconds to report it themselves, then SIGTERM, then
//   SIGKILL.
// - No process is left behind, even if the launcher is killed: see [Note: guard].
// Returns status 127 if the program cannot be found and 126 if it cannot be executed.
LaunchResult launch(const LaunchOptions& options, const BlockedSignals& signals);

}  // namespace tessera::process
