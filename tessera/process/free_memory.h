#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

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

}  // namespace tessera::process
