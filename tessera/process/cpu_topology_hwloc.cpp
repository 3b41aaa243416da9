#include <hwloc.h>

#include <algorithm>
#include <memory>

#include "tessera/process/cpu_topology.h"

namespace tessera::process {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};

int index_above(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t below) {
  if (type == HWLOC_OBJ_NUMANODE) {
    // NUMA nodes are not ancestors of cores in hwloc, so find the node by its cpuset.
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(topology, type, node)) != nullptr;) {
      if (hwloc_bitmap_isincluded(below->cpuset, node->cpuset)) {
        return static_cast<int>(node->os_index);
      }
    }
    return 0;
  }
  const hwloc_obj_t above = hwloc_get_ancestor_obj_by_type(topology, type, below);
  return above != nullptr ? static_cast<int>(above->logical_index) : 0;
}

}  // namespace

std::optional<Topology> topology_from_hwloc(const std::vector<int>& allowed) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return std::nullopt;
  const std::unique_ptr<hwloc_topology, Destroy> handle(raw);
  if (hwloc_topology_load(raw) != 0) return std::nullopt;

  Topology result;
  result.source = "hwloc " HWLOC_VERSION;
  // hwloc's logical order already goes by package, NUMA node and core.
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_CORE, core)) != nullptr;) {
    Core found;
    found.package = index_above(raw, HWLOC_OBJ_PACKAGE, core);
    found.numa = index_above(raw, HWLOC_OBJ_NUMANODE, core);
    for (int cpu : allowed) {
      if (hwloc_bitmap_isset(core->cpuset, static_cast<unsigned>(cpu)) != 0) {
        found.cpus.push_back(cpu);
      }
    }
    if (!found.cpus.empty()) result.cores.push_back(found);
  }
  return result;
}

}  // namespace tessera::process
