#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tessera/planner/topology.h"
#include "tessera/simulator/events.h"

namespace tessera::simulator {

enum Level : std::uint8_t { kInside, kBetween };

// What a message or a collective asks of the network: seconds that it would cross the ports of its
// ranks, by level, if it were alone there, and the latency of its steps besides.
struct Load {
  std::array<double, 2> seconds{};
  double latency = 0;
  double alone() const { return std::max(seconds[kInside], seconds[kBetween]) + latency; }
};
Load load_of(const planner::CollectiveCost& cost, const planner::Topology& topology);

// Flows over ports. A device has four: out and in, to its node and to others. A port is split
// equally among the flows that cross it, and a flow goes at the pace of the slowest port on its
// way; what it leaves unused elsewhere is not given to others. What flows of the same kind take
// from each other (groups that leave a node together) is in their loads. Devices are dp groups of
// equal size, one after another; a group has at most one collective of its own at a time, which
// crosses the ports of all its members, and takes part in at most one over replicas, which never
// crosses the same ports: [Note: two queues]. Ends of flows are put into the queue as
// Event::transferred and Event::reduced, with a version: only the newest of a flow counts.
class Network {
 public:
  // `shared` false: nothing is in the way of anything, to see what that costs.
  Network(int groups, int members, EventQueue& queue, bool shared = true);

  // Returns the flow's number, which is free again after release().
  std::uint32_t send(double now, int from, int to, Level level, double seconds);
  // True if this event is the end of the flow; its ports are free then.
  bool transferred(double now, const Event& event);
  void release(std::uint32_t flow) { free_.push_back(flow); }

  // Number of the collective that a group runs, in events: its own, or its part of one over
  // replicas.
  static std::uint32_t slot(int group, bool across) {
    return static_cast<std::uint32_t>(group) * 2 + (across ? 1 : 0);
  }
  void start_collective(double now, std::uint32_t slot, const Load& load);
  bool reduced(double now, const Event& event);

 private:
  struct Flow {
    double left = 1;   // of it
    double alone = 0;  // seconds of all of it
    double rate = 0;
    double since = 0;
    std::uint32_t version = 0;
    int from = -1, to = -1;
    Level level = kInside;
    std::array<std::uint32_t, 2> place{};  // in the lists of the groups of `to` and `from`
  };
  struct Group {
    struct Slot {
      Flow flow;
      bool active = false;
      Load load;
    };
    std::array<Slot, 2> slots;
    std::vector<std::uint32_t> messages;  // to and from its members: flow · 2 + (1 if from)
    // [level][n]: how many ports of the members are crossed by n messages.
    std::array<std::vector<int>, 2> ports;
  };

  std::size_t port(int device, bool out, Level level) const {
    return (static_cast<std::size_t>(device) * 2 + (out ? 1 : 0)) * 2 + level;
  }
  int group_of(int device) const { return device / members_; }
  int crossing(int device, bool out, Level level) const;
  void occupy(double now, std::uint32_t flow, bool on);
  void list(Group& group, std::uint32_t flow, bool out, bool on);
  void re_rate(double now, std::uint32_t flow);
  void re_rate_collective(double now, std::uint32_t slot);
  void re_rate_messages(double now, int group);
  void set_rate(double now, Flow& flow, double rate, Event::Type type, std::uint32_t id);

  int members_;
  bool shared_;
  EventQueue& queue_;
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> free_;
  std::vector<std::vector<std::uint32_t>> on_port_;  // messages
  std::vector<Group> groups_;
};

}  // namespace tessera::simulator
