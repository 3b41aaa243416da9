#include "tests/process/launcher_process.h"

#include <sstream>
#include <utility>

namespace tessera::process {
namespace {

LaunchOptions with_outputs(LaunchOptions options, const Capture& out, const Capture& err) {
  options.out = out.fd();
  options.err = err.fd();
  return options;
}

}  // namespace

int launched(const LaunchOptions& options) {
  const BlockedSignals signals;
  return launch(options, signals).status;
}

LauncherProcess::LauncherProcess(LaunchOptions options)
    : child_([this, options = std::move(options)] {
        return launched(with_outputs(options, out_, err_));
      }) {}

bool LauncherProcess::saw(const std::string& word, int count) const {
  return wait_until([&] {
    int found = 0;
    for (const std::string& line : out_.lines()) {
      if (line.find(word) != std::string::npos) ++found;
    }
    return found >= count;
  });
}

std::vector<pid_t> printed_pids(const LauncherProcess& launcher) {
  std::vector<pid_t> pids;
  for (const std::string& line : launcher.lines()) {
    std::istringstream words(line);
    std::string prefix, word;
    words >> prefix >> word;
    for (pid_t pid = 0; words >> pid;) pids.push_back(pid);
  }
  return pids;
}

LaunchOptions script(int ranks, const std::string& text) {
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", text};
  options.environment = {"PATH=/usr/local/bin:/usr/bin:/bin"};
  return options;
}

}  // namespace tessera::process
