#include "tessera/process/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "tessera/core/index.h"

namespace tessera::process {
namespace {

std::optional<long> read_number(const std::string& path) {
  std::ifstream file(path);
  long value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The sysfs folder of a CPU holds a link "node3" for its NUMA node.
int numa_node_of(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("node") && name.find_first_not_of("0123456789", 4) == std::string::npos &&
        name.size() > 4) {
      return std::atoi(name.c_str() + 4);
    }
  }
  return 0;
}

// Parses cpu.max of cgroup v2, quota and period: "max 100000" or "200000 100000".
std::optional<double> quota_in(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string time;
  double period = 0;
  if (!(file >> time >> period) || time == "max" || period <= 0) return std::nullopt;
  return std::atof(time.c_str()) / period;
}

}  // namespace

int Topology::packages() const {
  std::set<int> seen;
  for (const Core& core : cores) seen.insert(core.package);
  return static_cast<int>(seen.size());
}

int Topology::numa_nodes() const {
  std::set<int> seen;
  for (const Core& core : cores) seen.insert(core.numa);
  return static_cast<int>(seen.size());
}

int Topology::cpus() const {
  std::size_t count = 0;
  for (const Core& core : cores) count += core.cpus.size();
  return static_cast<int>(count);
}

std::vector<int> allowed_cpus() {
  // The kernel rejects a set smaller than its own, so retry with larger ones.
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 2) {
    const std::size_t size = CPU_ALLOC_SIZE(capacity);
    std::vector<cpu_set_t> bits(size / sizeof(cpu_set_t) + 1);
    if (::sched_getaffinity(0, size, bits.data()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(as_size(cpu), size, bits.data())) cpus.push_back(cpu);
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return {0};
}

Topology topology_from_sysfs(const std::vector<int>& allowed, const std::string& root) {
  // Without sysfs (some containers hide it) every CPU counts as a core.
  std::map<std::tuple<int, int, int>, std::vector<int>> cores;
  for (int cpu : allowed) {
    const std::string folder = root + "/cpu" + std::to_string(cpu);
    const auto package = read_number(folder + "/topology/physical_package_id");
    const auto core = read_number(folder + "/topology/core_id");
    cores[{static_cast<int>(package.value_or(0)), numa_node_of(folder),
           static_cast<int>(core.value_or(cpu))}]
        .push_back(cpu);
  }
  Topology result;
  result.source = "sysfs";
  for (const auto& [place, cpus] : cores) {
    result.cores.push_back({std::get<0>(place), std::get<1>(place), cpus});
  }
  return result;
}

Topology topology() {
  const std::vector<int> allowed = allowed_cpus();
  if (auto result = topology_from_hwloc(allowed); result && !result->cores.empty()) return *result;
  return topology_from_sysfs(allowed);
}

std::optional<double> cpu_quota() {
  std::optional<double> least;
  const auto consider = [&](std::optional<double> quota) {
    if (quota && *quota > 0) least = std::min(least.value_or(*quota), *quota);
  };
  // The limits of all ancestors apply. In a container our own path may be hidden.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.erase(path.rfind('/'))) {
      consider(quota_in("/sys/fs/cgroup" + path));
    }
  }
  consider(quota_in("/sys/fs/cgroup"));
  const auto time = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (time && period && *period > 0) {
    consider(static_cast<double>(*time) / static_cast<double>(*period));
  }
  return least;
}

std::vector<std::vector<int>> divide_cores(const Topology& topology, int ranks) {
  std::vector<std::vector<int>> shares(as_size(ranks));
  const std::size_t cores = topology.cores.size(), count = shares.size();
  if (count > cores) return shares;
  for (std::size_t rank = 0; rank < count; ++rank) {
    for (std::size_t i = rank * cores / count; i < (rank + 1) * cores / count; ++i) {
      const std::vector<int>& cpus = topology.cores[i].cpus;
      shares[rank].insert(shares[rank].end(), cpus.begin(), cpus.end());
    }
  }
  return shares;
}

int threads_per_rank(const Topology& topology, std::optional<double> quota, int ranks) {
  double cores = static_cast<double>(topology.cores.size());
  if (quota) cores = std::min(cores, std::ceil(*quota));
  return std::max(1, static_cast<int>(cores) / ranks);
}

}  // namespace tessera::process
