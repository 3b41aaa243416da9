#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tessera/process/launcher.h"
#include "tests/processes.h"

namespace tessera::process {

// Runs launch() with its signals blocked and returns the status.
int launched(const LaunchOptions& options);

// Runs launch() in a child process, so that it can be sent signals and killed.
class LauncherProcess {
 public:
  explicit LauncherProcess(LaunchOptions options);
  Child& process() { return child_; }
  int wait() { return child_.wait(); }
  std::string out() const { return out_.text(); }
  std::string err() const { return err_.text(); }
  std::vector<std::string> lines() const { return out_.lines(); }
  // Waits for `count` lines on stdout that contain `word`.
  bool saw(const std::string& word, int count) const;

 private:
  Capture out_, err_;
  Child child_;
};

// Returns the numbers after the prefix and the first word of each line.
std::vector<pid_t> printed_pids(const LauncherProcess& launcher);

// Options for `ranks` ranks that run a shell script.
LaunchOptions script(int ranks, const std::string& text);

}  // namespace tessera::process
