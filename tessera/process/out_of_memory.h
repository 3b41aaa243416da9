#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::process {

// Detects kills by the kernel's OOM killer. They use the same SIGKILL that any process can send,
// but the kernel counts them: in the cgroup's memory.events (cgroup v2) and, for the whole machine,
// in /proc/vmstat.
class OutOfMemoryKills {
 public:
  // Stores the current counts. Files contain lines "name number"; the default is those of this
  // process.
  explicit OutOfMemoryKills(std::vector<std::string> files = own_files());

  // Describes who sent a SIGKILL that the launcher did not send, by comparing the counts.
  std::string verdict() const;

  static std::vector<std::string> own_files();

 private:
  std::vector<std::string> files_;
  std::vector<std::optional<std::int64_t>> before_;
};

}  // namespace tessera::process
