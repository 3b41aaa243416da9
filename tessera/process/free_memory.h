#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tessera::process {

// The text of a file; nothing if it cannot be read. Tests give their own.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_file_of_host(const std::string& path);

// Bytes that new processes of this host can fill, and what bounds them.
struct FreeMemory {
  std::int64_t bytes = 0;
  std::string bound;  // "MemAvailable", "the control group"
};
// What the kernel calls available, with free swap; or what is left of the limit of a control group
// this process is in, if that is less. What the kernel could take back at once counts as free.
// Nothing where the host does not say.
std::optional<FreeMemory> free_host_memory(const ReadFile& read = read_file_of_host);

}  // namespace tessera::process
