#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::process {

// A physical core, with the processors (hardware threads) of it that this process may use.
struct Core {
  int package = 0;
  int numa = 0;
  std::vector<int> cpus;
};

// The cores that this process may use, neighbours side by side: by package, then by NUMA node, then
// by core, whatever the numbering of the processors is.
struct Topology {
  std::vector<Core> cores;
  std::string source;  // "hwloc 2.9.0" or "sysfs"

  int packages() const;
  int numa_nodes() const;
  int cpus() const;
};

std::vector<int> allowed_cpus();

// From hwloc where it was built in, otherwise from sysfs.
Topology topology();
std::optional<Topology> topology_from_hwloc(const std::vector<int>& allowed);
Topology topology_from_sysfs(const std::vector<int>& allowed,
                             const std::string& root = "/sys/devices/system/cpu");

// How many processors' worth of time the control group allows, if it sets a limit.
std::optional<double> cpu_quota();

// Contiguous shares of the cores for `ranks` ranks, as lists of processors; no lists (ranks empty
// ones) when there are more ranks than cores.
std::vector<std::vector<int>> divide_cores(const Topology& topology, int ranks);

// The threads each of `ranks` ranks should compute with: its share of the cores, at least 1.
int threads_per_rank(const Topology& topology, std::optional<double> quota, int ranks);

}  // namespace tessera::process
