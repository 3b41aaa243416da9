#include "tessera/process/out_of_memory.h"

#include <fstream>
#include <utility>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/process/free_memory.h"

namespace tessera::process {
namespace {

std::optional<std::int64_t> kills_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  for (std::int64_t value = 0; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> OutOfMemoryKills::own_files() {
  std::vector<std::string> files;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    const std::string path = line.substr(3);
    files.push_back(str("/sys/fs/cgroup", path == "/" ? "" : path, "/memory.events"));
  }
  files.push_back("/proc/vmstat");
  return files;
}

OutOfMemoryKills::OutOfMemoryKills(std::vector<std::string> files) : files_(std::move(files)) {
  for (const std::string& path : files_) before_.push_back(kills_in(path));
}

std::string OutOfMemoryKills::verdict() const {
  bool known = false;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const auto now = kills_in(files_[i]);
    if (!now || !before_[i]) continue;
    known = true;
    if (*now == *before_[i]) continue;
    return str("probably by the kernel, out of memory: oom_kill in ", files_[i], " rose from ",
               *before_[i], " to ", *now,
               ". Use less memory (see tessera plan) or raise the cgroup memory limit");
  }
  if (known) return "by another process: the kernel killed no process for lack of memory";
  const auto free = free_host_memory();
  return str(
      "possibly by the kernel, out of memory: ", free ? format_bytes(free->bytes) : "unknown bytes",
      " are available now, and the kernel's count of such kills is not readable here");
}

}  // namespace tessera::process
