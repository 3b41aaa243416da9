#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "tessera/core/fd.h"

namespace tessera::process {

// Parameters of a new process. Descriptors are the parent's; -1 means /dev/null for `in`, and
// inherits the parent's for the others.
struct ProcessSpec {
  std::string path;
  std::vector<std::string> arguments;    // including argv[0]
  std::vector<std::string> environment;  // NAME=value
  std::vector<int> cpus;                 // CPU affinity; empty keeps the parent's
  int in = -1;
  int out = -1;
  int err = -1;
  int inherited = -1;      // descriptor kept open under its number, which must be above 2
  sigset_t signal_mask{};  // initially blocked signals
};

// Result of start_process().
struct Started {
  pid_t pid = -1;
  int exec_errno = 0;  // not 0: exec failed and no process runs
};

// Starts a process in its own process group. The kernel kills it when the calling thread exits.
Started start_process(const ProcessSpec& spec);

// Returns the path of `program`, looked up in `search_path` (in the format of PATH) if it has no
// slash; "" if it is not found.
std::string find_program(const std::string& program, const std::string& search_path);

// [Note: guard]
// When the launcher is killed with SIGKILL, the kernel kills the ranks (PR_SET_PDEATHSIG), but not
// the processes that the ranks started. Therefore a small guard process stores the ranks' process
// groups and reads from a pipe whose write end only the launcher holds. When the pipe closes, the
// guard kills the remaining groups. It holds no other descriptor and never executes a program.
class Guard {
 public:
  explicit Guard(int most_groups);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void watch(pid_t group);
  void forget(pid_t group);

 private:
  pid_t pid_ = -1;
  Fd pipe_;
};

}  // namespace tessera::process
