// Replaces cpu_topology_hwloc.cpp in builds without hwloc.
#include "tessera/process/cpu_topology.h"

namespace tessera::process {

std::optional<Topology> topology_from_hwloc(const std::vector<int>&) { return std::nullopt; }

}  // namespace tessera::process
