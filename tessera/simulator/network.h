#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/planner/hardware.h"
#include "tessera/planner/step_time.h"
#include "tessera/simulator/events.h"

namespace tessera::simulator {

// How a collective goes over its ranks. `mixed`, which the planner counts with: the bytes of a
// ring, whose rounds over many nodes are those of a tree. `automatic` takes the quicker of ring and
// tree.
enum class Algorithm : std::uint8_t { mixed, ring, tree, automatic };
Algorithm parse_algorithm(std::string_view text);  // throws UsageError

// Nodes of `per_node` devices. A device has four ports: out and in, to the other devices of its
// node and to other nodes.
struct Fabric {
  planner::Link inside;
  planner::Link between;
  int per_node = 8;
  Algorithm algorithm = Algorithm::mixed;
  double rail_share = 1;  // of a collective's devices in a node, those it leaves through at once
};
enum Level : std::uint8_t { kInside, kBetween };

// What a collective asks of the network: bytes through the ports of every member, by level, and
// the latency of its steps. Alone on the network it takes seconds().
struct CollectiveLoad {
  std::array<double, 2> bytes{};
  double latency = 0;
  double seconds(const Fabric& fabric) const;
};

// [Note: loads of collectives]
// n ranks, m of them in each of the nodes. V = 2(n-1)/n · D for an all-reduce, and half of it for
// reduce-scatter and all-gather:
// - ring: V through the ports inside, and V/r through those between nodes, where r rings side by
//   side leave a node through r of its devices (m times the fabric's share, at least 1). A round
//   inside the node and one over the nodes cost latency, twice for an all-reduce.
// - tree: two binary trees, each rank inside one and a leaf in the other: 2D for an all-reduce;
//   recursive halving or doubling, V, for the others; log2 levels of latency each way.
// Alone on one level they are the textbook's: 2(n-1)/n · D/B + 2(n-1) · latency for a ring.
CollectiveLoad collective_load(const Fabric& fabric, planner::Collective kind, double bytes,
                               int ranks, int per_node);

// Flows over ports. A port's bandwidth is split equally among the flows that cross it, and a flow
// goes at the pace of the slowest port on its way; what it leaves unused elsewhere is not given to
// others. Devices are dp groups of equal size, one after another; a group has at most one
// collective at a time, which crosses the ports of all its members.
// Ends of flows are put into the queue as Event::transferred and Event::reduced, with a version:
// only the newest of a flow counts.
class Network {
 public:
  Network(const Fabric& fabric, int groups, int members, EventQueue& queue);

  // Returns the flow's number, which is free again after release().
  std::uint32_t send(double now, int from, int to, Level level, double bytes);
  // True if this event is the end of the flow; its ports are free then.
  bool transferred(double now, const Event& event);
  void release(std::uint32_t flow) { free_.push_back(flow); }

  void start_collective(double now, int group, const CollectiveLoad& load);
  bool reduced(double now, const Event& event);

 private:
  struct Flow {
    double left = 0;  // bytes; of a collective: the part of it
    double rate = 0;
    double since = 0;
    std::uint32_t version = 0;
    int from = -1, to = -1;
    Level level = kInside;
    std::array<std::uint32_t, 2> place{};  // in the lists of the groups of `to` and `from`
  };
  struct Group {
    Flow collective;
    bool active = false;
    CollectiveLoad load;
    std::vector<std::uint32_t> messages;  // to and from its members: flow · 2 + (1 if from)
    // [level][n]: how many ports of the members are crossed by n messages.
    std::array<std::vector<int>, 2> ports;
  };

  std::size_t port(int device, bool out, Level level) const {
    return (static_cast<std::size_t>(device) * 2 + (out ? 1 : 0)) * 2 + level;
  }
  int group_of(int device) const { return device / members_; }
  double bandwidth(Level level) const {
    return level == kInside ? fabric_.inside.bandwidth : fabric_.between.bandwidth;
  }
  int crossing(int device, bool out, Level level) const;
  void occupy(double now, std::uint32_t flow, bool on);
  void list(Group& group, std::uint32_t flow, bool out, bool on);
  void re_rate(double now, std::uint32_t flow);
  void re_rate_collective(double now, int group);
  void re_rate_messages(double now, int group);
  void set_rate(double now, Flow& flow, double rate, Event::Type type, std::uint32_t id);

  Fabric fabric_;
  int members_;
  EventQueue& queue_;
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> free_;
  std::vector<std::vector<std::uint32_t>> on_port_;  // messages
  std::vector<Group> groups_;
};

}  // namespace tessera::simulator
