#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/axis.h"

namespace tessera::planner {

// A way between two devices: seconds to move n bytes in one direction are latency + n / bandwidth.
struct Link {
  double bandwidth = 0;  // bytes per second, one direction, as collectives reach it
  double latency = 0;    // seconds that a step of a collective costs besides
};

// How a collective goes over its ranks. `mixed`: the bytes of a ring, whose rounds over many nodes
// are those of a tree. `automatic`: the quicker of ring and tree.
enum class Algorithm : std::uint8_t { mixed, ring, tree, automatic };
Algorithm parse_algorithm(std::string_view text);  // throws UsageError

// A level of switches above the nodes, nearest first: so many nodes are joined below one of them,
// and what leaves it shares links that carry 1/oversubscription of what comes in. Adapters are on
// rails: the same one of every node is on the same switches, so a group with one member in each
// node stays on its rail and finds no such level in its way, and so does a tree, whose edges join
// the same devices of two nodes. A ring through several devices of a node comes in by one adapter
// and leaves by another: it changes rails, over the switches above them.
struct SwitchLevel {
  int nodes = 0;
  double oversubscription = 1;
};

// [Note: topology] Nodes of `per_node` devices, joined inside by links (NVLink, PCIe, memory) and
// to other nodes by `nics` adapters that the devices of a node share, through levels of switches.
struct Topology {
  int per_node = 8;
  std::string kind = "NVLink";  // of the links inside, to be printed
  Link inside;                  // of one device
  Link nic;                     // of one adapter
  int nics = 8;                 // of a node
  std::vector<SwitchLevel> switches;
  Algorithm algorithm = Algorithm::mixed;

  // What all adapters of a node carry in one direction.
  double out_of_node() const { return nics * nic.bandwidth; }
};

// `bytes` is the whole buffer: what every rank has before an all-reduce or a reduce-scatter, and
// after an all-gather.
enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, send };

// Where the ranks of a group lie. Of a send there are two.
struct GroupPlace {
  int ranks = 1;
  int in_node = 1;   // how many of them share a node
  int crossing = 1;  // groups that have members in a node and leave it at the same time
  int span = 1;      // nodes from its first member to its last, the others between them included
  int nodes() const { return (ranks + in_node - 1) / in_node; }
};

// [Note: collectives] n ranks, m of them in each node; V = 2(n-1)/n · D for an all-reduce of D
// bytes, half of it for reduce-scatter and all-gather.
// - A ring moves V through every rank's links inside. Out of each node go V as well, whatever m is:
//   rings side by side take a part of the buffer each. All groups that cross the border of a node
//   at the same time share its adapters; one group uses as many of them as belong to its devices
//   there (nics · m / per_node, one at least), so one that fills the node has them all.
// - A tree moves 2D for an all-reduce and V for the others, in log2 levels. Two binary trees, each
//   with half of the buffer, send 2D out of a node; between two nodes, where each is the root of
//   one, just D. `mixed` and `automatic` take that as NCCL does.
// - A send between nodes uses one adapter, shared with the other devices that send.
// - Above a switch that does not hold the whole group, what crosses has 1/oversubscription, unless
//   it stays on a rail: a group with one member in a node, a tree.
struct CollectiveCost {
  double latency = 0;
  double inside_bytes = 0;   // through the link of a device to its node
  double far_bytes = 0;      // out of a node, of this group
  double far_bandwidth = 0;  // that this group has for them, beside the others that cross
  // Of it alone, with no other axis at work.
  double seconds(const Topology& topology) const;
};
// What one collective of a group at that place costs.
CollectiveCost collective_cost(const Topology& topology, Collective kind, double bytes,
                               const GroupPlace& place);

// How fast such a group's collectives move bytes through a device, as a share of what links inside
// a node do. What they take from the kernels beside them goes with it: a transfer that waits for
// adapters occupies few units and little memory bandwidth.
double pace_of(const Topology& topology, const GroupPlace& place);

// [Note: order of axes] Ranks are numbered along the axes of `order`, the first of them innermost,
// and fill nodes one after another. "tp,dp,pp" keeps tensor parallelism's neighbours nearest.
inline constexpr std::string_view kUsualOrder = "tp,dp,pp";
// An axis of such a list.
struct AxisSize {
  Axis axis = Axis::dp_shard;
  int size = 1;
};
// Of the groups along an axis of such a list; the one that is worst off where they differ. An axis
// that is not listed has one rank.
GroupPlace axis_place(const Topology& topology, const std::vector<AxisSize>& order, Axis axis);
// Of two neighbours along an axis (stages of a pipeline, say) that are farthest apart; `crossing`
// counts the devices of a node that send at the same time.
GroupPlace neighbour_place(const Topology& topology, const std::vector<AxisSize>& order, Axis axis);

}  // namespace tessera::planner
