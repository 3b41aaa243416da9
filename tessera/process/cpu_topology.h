#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::process {

// Physical core with the CPUs (hardware threads) of it that this process may use.
struct Core {
  int package = 0;
  int numa = 0;
  std::vector<int> cpus;
};

// Cores that this process may use, ordered by package, NUMA node and core, so that neighbors are
// adjacent whatever the CPU numbering.
struct Topology {
  std::vector<Core> cores;
  std::string source;  // "hwloc 2.9.0" or "sysfs"

  int packages() const;
  int numa_nodes() const;
  int cpus() const;
};

// Returns the CPUs in the affinity mask of this process.
std::vector<int> allowed_cpus();

// Returns the topology from hwloc if built with it, otherwise from sysfs.
Topology topology();
std::optional<Topology> topology_from_hwloc(const std::vector<int>& allowed);
Topology topology_from_sysfs(const std::vector<int>& allowed,
                             const std::string& root = "/sys/devices/system/cpu");

// Returns the CPU quota of the cgroup in CPUs, or nullopt without a limit.
std::optional<double> cpu_quota();

// Divides the cores into contiguous shares and returns the CPU list of each rank. All lists are
// empty if there are more ranks than cores.
std::vector<std::vector<int>> divide_cores(const Topology& topology, int ranks);

// Returns the number of compute threads per rank: its share of the cores, at least 1.
int threads_per_rank(const Topology& topology, std::optional<double> quota, int ranks);

}  // namespace tessera::process
