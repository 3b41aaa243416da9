#include "tessera/simulator/network.h"

#include <algorithm>

namespace tessera::simulator {

Load load_of(const planner::CollectiveCost& cost, const planner::Topology& topology) {
  Load load;
  load.latency = cost.latency;
  if (cost.inside_bytes > 0) load.seconds[kInside] = cost.inside_bytes / topology.inside.bandwidth;
  if (cost.far_bytes > 0) load.seconds[kBetween] = cost.far_bytes / cost.far_bandwidth;
  return load;
}

Network::Network(int groups, int members, EventQueue& queue, bool shared)
    : members_(members),
      shared_(shared),
      queue_(queue),
      on_port_(static_cast<std::size_t>(groups) * static_cast<std::size_t>(members) * 4),
      groups_(static_cast<std::size_t>(groups)) {
  for (Group& group : groups_) {
    for (auto& ports : group.ports) ports.assign(1, 2 * members);
  }
}

std::uint32_t Network::send(double now, int from, int to, Level level, double seconds) {
  std::uint32_t id = 0;
  if (free_.empty()) {
    id = static_cast<std::uint32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[id];
  flow.left = 1;
  flow.alone = seconds;
  flow.rate = 0;
  flow.since = now;
  flow.from = from;
  flow.to = to;
  flow.level = level;
  ++flow.version;
  if (seconds <= 0) {
    queue_.push(now, Event::transferred, id, flow.version);
  } else {
    occupy(now, id, true);
  }
  return id;
}

bool Network::transferred(double now, const Event& event) {
  Flow& flow = flows_[event.id];
  if (event.version != flow.version) return false;
  ++flow.version;
  if (flow.rate > 0) occupy(now, event.id, false);
  return true;
}

void Network::start_collective(double now, std::uint32_t id, const Load& load) {
  Group::Slot& slot = groups_[id / 2].slots[id % 2];
  slot.active = true;
  slot.load = load;
  slot.flow.left = 1;
  slot.flow.rate = 0;
  slot.flow.since = now;
  ++slot.flow.version;
  if (load.seconds[kInside] <= 0 && load.seconds[kBetween] <= 0) {
    queue_.push(now, Event::reduced, id, slot.flow.version);
    return;
  }
  re_rate_messages(now, static_cast<int>(id / 2));
  re_rate_collective(now, id);
}

bool Network::reduced(double now, const Event& event) {
  Group::Slot& slot = groups_[event.id / 2].slots[event.id % 2];
  if (event.version != slot.flow.version) return false;
  ++slot.flow.version;
  slot.active = false;
  re_rate_messages(now, static_cast<int>(event.id / 2));
  return true;
}

int Network::crossing(int device, bool out, Level level) const {
  if (!shared_) return 1;
  const Group& group = groups_[static_cast<std::size_t>(group_of(device))];
  int flows = static_cast<int>(on_port_[port(device, out, level)].size());
  for (const Group::Slot& slot : group.slots) {
    if (slot.active && slot.load.seconds[level] > 0) ++flows;
  }
  return flows;
}

void Network::list(Group& group, std::uint32_t id, bool out, bool on) {
  std::uint32_t& place = flows_[id].place[out ? 1 : 0];
  auto& messages = group.messages;
  if (on) {
    place = static_cast<std::uint32_t>(messages.size());
    messages.push_back(id * 2 + (out ? 1 : 0));
    return;
  }
  const std::uint32_t last = messages.back();
  messages[place] = last;
  flows_[last / 2].place[last % 2] = place;
  messages.pop_back();
}

// Adds a message to its ports, or removes it, and updates the rates of all flows on these ports.
void Network::occupy(double now, std::uint32_t id, bool on) {
  const Flow flow = flows_[id];
  for (const bool out : {true, false}) {
    const int device = out ? flow.from : flow.to;
    Group& group = groups_[static_cast<std::size_t>(group_of(device))];
    auto& flows = on_port_[port(device, out, flow.level)];
    auto& ports = group.ports[flow.level];
    --ports[flows.size()];
    if (on) {
      flows.push_back(id);
    } else {
      *std::find(flows.begin(), flows.end(), id) = flows.back();
      flows.pop_back();
    }
    if (ports.size() <= flows.size()) ports.resize(flows.size() + 1, 0);
    ++ports[flows.size()];
    list(group, id, out, on);
    for (const std::uint32_t other : flows) {
      if (other != id) re_rate(now, other);
    }
    for (const bool across : {false, true}) {
      const std::uint32_t each = slot(group_of(device), across);
      if (group.slots[each % 2].active) re_rate_collective(now, each);
    }
  }
  if (on) re_rate(now, id);
}

void Network::re_rate(double now, std::uint32_t id) {
  Flow& flow = flows_[id];
  const int n =
      std::max(crossing(flow.from, true, flow.level), crossing(flow.to, false, flow.level));
  set_rate(now, flow, 1 / (flow.alone * n), Event::transferred, id);
}

void Network::re_rate_messages(double now, int group) {
  for (const std::uint32_t each : groups_[static_cast<std::size_t>(group)].messages) {
    re_rate(now, each / 2);
  }
}

void Network::re_rate_collective(double now, std::uint32_t id) {
  Group& group = groups_[id / 2];
  Group::Slot& slot = group.slots[id % 2];
  double seconds = 0;
  for (const Level level : {kInside, kBetween}) {
    if (slot.load.seconds[level] <= 0) continue;
    const auto& ports = group.ports[level];
    std::size_t most = ports.size() - 1;
    while (most > 0 && (ports[most] == 0 || !shared_)) --most;
    seconds = std::max(seconds, slot.load.seconds[level] * static_cast<double>(most + 1));
  }
  set_rate(now, slot.flow, 1 / seconds, Event::reduced, id);
}

void Network::set_rate(double now, Flow& flow, double rate, Event::Type type, std::uint32_t id) {
  if (rate == flow.rate) return;
  flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.since));
  flow.since = now;
  flow.rate = rate;
  queue_.push(now + flow.left / rate, type, id, ++flow.version);
}

}  // namespace tessera::simulator
