#include "tessera/process/host_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::process {
namespace {

// Returns the number after `word` at the start of a line: "MemAvailable:  123 kB", "inactive_file
// 123".
std::optional<std::int64_t> number_after(const std::string& text, const std::string& word) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    std::int64_t value = 0;
    if (words >> first && first == word && words >> value) return value;
  }
  return std::nullopt;
}

// Reads a file that holds one number. Returns nullopt for no limit: "max" in cgroup v2, a huge
// number in v1.
std::optional<std::int64_t> limit_in(const ReadFile& read, const std::string& path) {
  const auto text = read(path);
  if (!text) return std::nullopt;
  std::istringstream in(*text);
  std::int64_t value = 0;
  if (!(in >> value) || value >= (std::int64_t{1} << 60)) return std::nullopt;
  return value;
}

// Returns the bytes that a cgroup may still allocate. File pages count as free because the kernel
// drops them first. `prefix` is that of the memory.stat entries.
std::optional<std::int64_t> left_in(const ReadFile& read, const std::string& folder,
                                    const char* limit, const char* used,
                                    const std::string& prefix) {
  const auto most = limit_in(read, folder + "/" + limit);
  const auto now = limit_in(read, folder + "/" + used);
  if (!most || !now) return std::nullopt;
  const std::string stat = read(folder + "/memory.stat").value_or("");
  const std::int64_t files = number_after(stat, prefix + "inactive_file").value_or(0) +
                             number_after(stat, prefix + "active_file").value_or(0);
  return std::max<std::int64_t>(0, *most - *now + files);
}

// Returns the path of this process in the hierarchy with these controllers ("" in cgroup v2).
std::optional<std::string> group_path(const std::string& cgroup, const std::string& controllers) {
  std::istringstream lines(cgroup);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controllers) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Returns a cgroup folder and its ancestors, all of which impose their limits. A container sees its
// own cgroup as the root, whatever its path in /proc/self/cgroup.
std::vector<std::string> with_parents(const std::string& root, std::string path) {
  std::vector<std::string> all;
  while (path.size() > 1) {
    all.push_back(root + path);
    path.erase(path.find('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  all.push_back(root);
  return all;
}

}  // namespace

std::optional<std::string> read_file_of_host(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<FreeMemory> free_host_memory(const ReadFile& read) {
  const std::string meminfo = read("/proc/meminfo").value_or("");
  const auto available = number_after(meminfo, "MemAvailable:");
  if (!available) return std::nullopt;
  const std::int64_t swap = number_after(meminfo, "SwapFree:").value_or(0);
  FreeMemory free{(*available + swap) * 1024, swap > 0 ? "MemAvailable and swap" : "MemAvailable"};
  const auto bound = [&](std::optional<std::int64_t> left) {
    if (left && *left < free.bytes) free = {*left, "the cgroup memory limit"};
  };
  const std::string cgroup = read("/proc/self/cgroup").value_or("");
  for (const std::string& folder :
       with_parents("/sys/fs/cgroup", group_path(cgroup, "").value_or("/"))) {
    bound(left_in(read, folder, "memory.max", "memory.current", ""));
  }
  for (const std::string& folder :
       with_parents("/sys/fs/cgroup/memory", group_path(cgroup, "memory").value_or("/"))) {
    bound(left_in(read, folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"));
  }
  return free;
}

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
