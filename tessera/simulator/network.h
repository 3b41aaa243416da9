#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <queue>
#include <vector>

#include "tessera/planner/topology.h"

namespace tessera::simulator {

// Event of a simulation. Small, because a large run has tens of thousands in the queue and millions
// in total.
struct Event {
  enum Type : std::uint32_t {
    computed,     // a worker has computed a piece
    transferred,  // the last byte of a message has left the ports
    arrived,      // a message has arrived
    ready,        // all members of a group are ready for its next collective
    reduced,      // the last byte of a collective has left the ports
    finished,     // a collective is done
  };
  double time = 0;
  std::uint32_t id = 0;  // worker, flow or group
  std::uint32_t version : 29 = 0;
  std::uint32_t kind : 3 = computed;

  Type type() const { return static_cast<Type>(kind); }
  // Events of the same time are ordered too, so that runs are reproducible.
  bool later_than(const Event& other) const {
    if (time != other.time) return time > other.time;
    if (kind != other.kind) return kind > other.kind;
    return id != other.id ? id > other.id : version > other.version;
  }
};
static_assert(sizeof(Event) == 16);

// Queue of events, in the order of time.
class EventQueue {
 public:
  void push(double time, Event::Type type, std::uint32_t id, std::uint32_t version = 0) {
    ++count_;
    heap_.push({time, id, version & 0x1fffffff, type});
  }
  // Adds an event that was popped before. It is not counted again.
  void put_back(const Event& event) { heap_.push(event); }
  bool empty() const { return heap_.empty(); }
  double next() const { return heap_.top().time; }
  Event pop() {
    const Event event = heap_.top();
    heap_.pop();
    return event;
  }
  std::uint64_t count() const { return count_; }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.later_than(b); }
  };
  std::priority_queue<Event, std::vector<Event>, Later> heap_;
  std::uint64_t count_ = 0;
};

// Links inside a node, and links between nodes.
enum Level : std::uint8_t { kInside, kBetween };

// Load of a message or a collective on the network: seconds that it occupies the ports of its
// ranks, by level, if no other flow uses them, and the latency of its steps in addition.
struct Load {
  std::array<double, 2> seconds{};
  double latency = 0;
  double alone() const { return std::max(seconds[kInside], seconds[kBetween]) + latency; }
};
Load load_of(const planner::CollectiveCost& cost, const planner::Topology& topology);

// Network of flows over ports. A device has four ports: out and in, to its node and to other nodes.
// The flows that cross a port share it equally, and a flow has the rate of the slowest port on its
// path; bandwidth that it leaves unused on other ports is not given to other flows. Contention
// among flows of the same kind (groups that leave a node together) is part of their loads. Devices
// are numbered by dp groups of equal size. A group runs at most one collective of its own at a
// time, which crosses the ports of all its members, and takes part in at most one collective over
// replicas, which never crosses the same ports: [Note: two queues]. The ends of flows are queued as
// Event::transferred and Event::reduced, with a version: only the newest version of a flow counts.
class Network {
 public:
  // `shared` false: flows do not slow each other down. Used to measure the cost of contention.
  Network(int groups, int members, EventQueue& queue, bool shared = true);

  // Starts a message. Returns the flow's number, which is reused after release().
  std::uint32_t send(double now, int from, int to, Level level, double seconds);
  // Returns true if this event is the end of the flow, and then frees its ports.
  bool transferred(double now, const Event& event);
  void release(std::uint32_t flow) { free_.push_back(flow); }

  // Returns the id, in events, of a collective of a group: its own, or its part of a collective
  // over replicas.
  static std::uint32_t slot(int group, bool across) {
    return static_cast<std::uint32_t>(group) * 2 + (across ? 1 : 0);
  }
  void start_collective(double now, std::uint32_t slot, const Load& load);
  bool reduced(double now, const Event& event);

 private:
  struct Flow {
    double left = 1;   // remaining fraction at `since`
    double alone = 0;  // seconds of the whole flow without contention
    double rate = 0;   // fraction per second
    double since = 0;  // time of the last change of the rate
    std::uint32_t version = 0;
    int from = -1, to = -1;
    Level level = kInside;
    std::array<std::uint32_t, 2> place{};  // index in Group::messages of `to` and `from`
  };
  struct Group {
    struct Slot {
      Flow flow;
      bool active = false;
      Load load;
    };
    std::array<Slot, 2> slots;
    std::vector<std::uint32_t> messages;  // to and from its members: flow · 2 + (1 if from)
    // [level][n]: number of ports of the members that n messages cross.
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
