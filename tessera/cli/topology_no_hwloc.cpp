// Stands in for topology_hwloc.cpp where hwloc was not found.
#include "tessera/cli/topology.h"

namespace tessera::cli {

std::optional<Topology> topology_from_hwloc(const std::vector<int>&) { return std::nullopt; }

}  // namespace tessera::cli
