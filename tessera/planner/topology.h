#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/hardware.h"

namespace tessera::planner {

// Algorithm of a collective. `mixed`: the bytes of a ring with the rounds of a tree across many
// nodes. `automatic`: the faster of ring and tree.
enum class Algorithm : std::uint8_t { mixed, ring, tree, automatic };
Algorithm parse_algorithm(std::string_view text);  // throws UsageError

// [Note: topology] Nodes of `per_node` devices, joined inside by links (NVLink, PCIe, memory) and
// to other nodes by `nics` adapters that the devices of a node share, through levels of switches.
struct Topology {
  int per_node = 8;
  std::string kind = "NVLink";  // type of the links inside a node, for output
  Link inside;                  // per device
  Link nic;                     // per adapter
  int nics = 8;                 // per node
  std::vector<SwitchLevel> switches;
  Algorithm algorithm = Algorithm::mixed;

  // Returns the bandwidth of all adapters of a node in one direction.
  double out_of_node() const { return nics * nic.bandwidth; }
};

// Collective operation. Its `bytes` are those of the whole buffer, which every rank has before an
// all-reduce, a reduce-scatter or an all-to-all, and after an all-gather.
enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, send };

// Placement of a group's ranks on the nodes. A send has two ranks.
struct GroupPlace {
  int ranks = 1;
  int in_node = 1;   // number of them in one node
  int crossing = 1;  // groups with members in a node that communicate across nodes at the same time
  int span = 1;      // nodes from its first member to its last, including those in between
  int nodes() const { return (ranks + in_node - 1) / in_node; }
  friend bool operator==(const GroupPlace&, const GroupPlace&) = default;
};

// [Note: collectives] n ranks, m of them in each node. V = 2(n-1)/n · D for an all-reduce of D
// bytes, and half of that for reduce-scatter and all-gather.
// - A ring moves V bytes through every rank's link inside the node. V bytes also leave each node,
//   for any m: parallel rings each take a part of the buffer. All groups that leave a node at the
//   same time share its adapters. One group uses at most the adapters of its devices there (nics ·
//   m / per_node, at least one), so a group that fills the node uses all of them.
// - A tree moves 2D for an all-reduce and V for the others, in log2 levels. Two binary trees, each
//   with half of the buffer, send 2D out of a node. Between two nodes, each of which is the root of
//   one tree, they send only D. `mixed` and `automatic` count this as NCCL does.
// - An all-to-all of a buffer of D bytes sends (n-1)/n · D through a rank's link inside the node,
//   and m(n-m)/n · D out of each node.
// - A send between nodes uses one adapter, shared with the other sending devices. In a ring of
//   messages, one device of each node and group sends to another node.
// - Above a switch that does not join the whole group, the bandwidth is divided by the
//   oversubscription, unless the traffic stays on a rail (one member per node, or a tree).
struct CollectiveCost {
  double latency = 0;
  double inside_bytes = 0;   // through a device's link inside the node
  double far_bytes = 0;      // sent out of a node by this group
  double far_bandwidth = 0;  // bandwidth of this group for them, shared with the other groups
  // Returns the seconds of this collective without traffic on other axes.
  double seconds(const Topology& topology) const;
};
// Returns the cost of one collective of a group with that placement.
CollectiveCost collective_cost(const Topology& topology, Collective kind, double bytes,
                               const GroupPlace& place);

// Returns the rate at which the group's collectives move bytes through a device, relative to the
// links inside a node. Interference with kernels scales with it: a transfer that is limited by
// adapters uses few units and little memory bandwidth.
double pace_of(const Topology& topology, const GroupPlace& place);

// Axis of an order, with its size.
struct AxisSize {
  Axis axis = Axis::dp_shard;
  int size = 1;
};
// Returns the placement of the groups along an axis; the worst one if they differ. An axis that is
// not listed has one rank.
GroupPlace axis_place(const Topology& topology, const std::vector<AxisSize>& order, Axis axis);
// Returns the placement of the groups along several axes, flattened into one.
GroupPlace group_place(const Topology& topology, const std::vector<AxisSize>& order, AxisSet axes);
// Returns the placement of the two neighbors along an axis (for example pipeline stages) that are
// farthest apart. `crossing` counts the devices of a node that send at the same time.
GroupPlace neighbor_place(const Topology& topology, const std::vector<AxisSize>& order, Axis axis);

}  // namespace tessera::planner
