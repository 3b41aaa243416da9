#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "tessera/core/fd.h"

namespace tessera::process {

// What one process is started with. Descriptors are those of the parent; -1 for stdin is /dev/null,
// and -1 for the others leaves the parent's.
struct ProcessSpec {
  std::string path;
  std::vector<std::string> arguments;    // with the program's name
  std::vector<std::string> environment;  // NAME=value
  std::vector<int> cpus;                 // bound to these; empty leaves it as it is
  int in = -1;
  int out = -1;
  int err = -1;
  int inherited = -1;      // kept open under its number, which is above 2
  sigset_t signal_mask{};  // blocked signals at its start
};

struct Started {
  pid_t pid = -1;
  int exec_errno = 0;  // not 0: the program could not be executed, and nothing runs
};

// Starts a process in a group of its own, which the kernel kills when the calling thread ends.
Started start_process(const ProcessSpec& spec);

// The path that `program` means, looked up in `search_path` (the form of PATH) when it has no
// slash;
// "" when there is none.
std::string find_program(const std::string& program, const std::string& search_path);

// [Note: guard]
// When the launcher is killed with SIGKILL, the kernel kills the ranks (PR_SET_PDEATHSIG), but not
// the processes that the ranks have started. So a second small process knows the ranks' process
// groups and waits on a pipe whose other end only the launcher holds: when that closes, it kills
// the groups that are still there. It holds no other descriptor and never runs anything.
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
