#include "tessera/simulator/network.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera::simulator {
namespace {

// Runs all flows. Returns the end of each, by number; collectives have the number -1 - group.
std::map<int, double> run(EventQueue& queue, Network& network) {
  std::map<int, double> ends;
  while (!queue.empty()) {
    const Event event = queue.pop();
    if (event.type() == Event::transferred && network.transferred(event.time, event)) {
      ends[static_cast<int>(event.id)] = event.time;
    }
    if (event.type() == Event::reduced && network.reduced(event.time, event)) {
      ends[-1 - static_cast<int>(event.id)] = event.time;
    }
  }
  return ends;
}

TEST(Network, TwoFlowsOnOnePortTakeTwiceAsLong) {
  for (int flows = 1; flows <= 5; ++flows) {
    EventQueue queue;
    Network network(6, 1, queue);
    for (int i = 0; i < flows; ++i) network.send(0, 0, 1 + i, kBetween, 1);
    for (const auto& [id, end] : run(queue, network)) EXPECT_NEAR(end, flows, 1e-9);
  }
}

TEST(Network, FlowsOnOtherPortsAreIndependent) {
  EventQueue queue;
  Network network(4, 1, queue);
  network.send(0, 0, 1, kBetween, 1);
  network.send(0, 1, 0, kBetween, 1);  // the other direction
  network.send(0, 2, 3, kBetween, 1);
  network.send(0, 0, 1, kInside, 0.25);  // the other level
  const auto ends = run(queue, network);
  EXPECT_NEAR(ends.at(0), 1, 1e-9);
  EXPECT_NEAR(ends.at(1), 1, 1e-9);
  EXPECT_NEAR(ends.at(2), 1, 1e-9);
  EXPECT_NEAR(ends.at(3), 0.25, 1e-9);
}

// The second flow starts when half of the first is done; then both have half the rate.
TEST(Network, RatesChangeWhenFlowsStartAndEnd) {
  EventQueue queue;
  Network network(3, 1, queue);
  network.send(0, 0, 1, kBetween, 1);
  std::map<int, double> ends;
  queue.push(0.5, Event::arrived, 0);
  while (!queue.empty()) {
    const Event event = queue.pop();
    if (event.type() == Event::arrived) network.send(event.time, 0, 2, kBetween, 1);
    if (event.type() == Event::transferred && network.transferred(event.time, event)) {
      ends[static_cast<int>(event.id)] = event.time;
    }
  }
  EXPECT_NEAR(ends.at(0), 1.5, 1e-9);
  EXPECT_NEAR(ends.at(1), 2.0, 1e-9);
}

// A collective shares one member's port with a message: all members have half the rate.
TEST(Network, CollectivesSharePortsWithMessages) {
  EventQueue queue;
  Network network(2, 4, queue);
  Load load;
  load.seconds[kBetween] = 2;
  network.start_collective(0, 0, load);
  network.send(0, 2, 6, kBetween, 0.5);
  const auto ends = run(queue, network);
  EXPECT_NEAR(ends.at(0), 1.0, 1e-9);
  EXPECT_NEAR(ends.at(-1), 2.5, 1e-9);
}

// A load takes the time of its cost, whichever level is slower.
TEST(Network, LoadsEqualCosts) {
  planner::Topology topology;
  topology.inside = {4e9, 1e-6};
  topology.nic = {1e9, 5e-6};
  for (int ranks = 1; ranks <= 4096; ranks = ranks * 3 / 2 + 1) {
    for (const int in_node : {1, 2, 4, 8}) {
      for (const auto kind : {planner::Collective::all_reduce, planner::Collective::reduce_scatter,
                              planner::Collective::all_gather, planner::Collective::send}) {
        planner::GroupPlace place;
        place.ranks = kind == planner::Collective::send ? 2 : ranks;
        place.in_node = in_node;
        place.crossing = 8 / in_node;
        const auto cost = planner::collective_cost(topology, kind, 3e8, place);
        EXPECT_NEAR(load_of(cost, topology).alone(), cost.seconds(topology), 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::simulator
