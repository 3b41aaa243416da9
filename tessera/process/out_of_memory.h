#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::process {

// The kernel ends a process for want of memory with the same SIGKILL that anybody can send. It
// counts those that it has ended: in the control group's memory.events (version 2) and, for the
// whole machine, in /proc/vmstat.
class OutOfMemoryKills {
 public:
  // Remembers the counts; files of lines "name number", by default those of this process.
  explicit OutOfMemoryKills(std::vector<std::string> files = own_files());

  // For the report of a SIGKILL that we did not send: what the counts say of it since then.
  std::string verdict() const;

  static std::vector<std::string> own_files();

 private:
  std::vector<std::string> files_;
  std::vector<std::optional<std::int64_t>> before_;
};

}  // namespace tessera::process
