#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::process {

// Returns the contents of a file, or nullopt if it cannot be read. Tests supply their own.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_file_of_host(const std::string& path);

// Memory that new processes on this host can use.
struct FreeMemory {
  std::int64_t bytes = 0;
  std::string bound;  // the limiting value: "MemAvailable", "the cgroup memory limit"
};
// Returns the kernel's MemAvailable plus free swap, or what is left of the limit of a cgroup of
// this process if that is less. Reclaimable file pages count as free. Returns nullopt if the host
// does not report MemAvailable.
std::optional<FreeMemory> free_host_memory(const ReadFile& read = read_file_of_host);

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
