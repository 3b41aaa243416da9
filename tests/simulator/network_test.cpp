#include "tessera/simulator/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/planner/formulas.h"

namespace tessera::simulator {
namespace {

using planner::Collective;

const Fabric kFabric{{4e9, 1e-6}, {1e9, 5e-6}, 8, Algorithm::ring};

// Runs the flows to their ends: when each ended, by number; collectives as -1 - group.
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
    Network network(kFabric, 6, 1, queue);
    for (int i = 0; i < flows; ++i) network.send(0, 0, 1 + i, kBetween, 1e9);
    for (const auto& [id, end] : run(queue, network)) EXPECT_NEAR(end, flows, 1e-9);
  }
}

TEST(Network, OtherPortsAreFree) {
  EventQueue queue;
  Network network(kFabric, 4, 1, queue);
  network.send(0, 0, 1, kBetween, 1e9);
  network.send(0, 1, 0, kBetween, 1e9);  // the other direction
  network.send(0, 2, 3, kBetween, 1e9);
  network.send(0, 0, 1, kInside, 1e9);  // the other level
  const auto ends = run(queue, network);
  EXPECT_NEAR(ends.at(0), 1, 1e-9);
  EXPECT_NEAR(ends.at(1), 1, 1e-9);
  EXPECT_NEAR(ends.at(2), 1, 1e-9);
  EXPECT_NEAR(ends.at(3), 0.25, 1e-9);
}

// The second comes when half of the first is through; then both go at half the pace.
TEST(Network, PacesChangeWhenFlowsComeAndGo) {
  EventQueue queue;
  Network network(kFabric, 3, 1, queue);
  network.send(0, 0, 1, kBetween, 1e9);
  std::map<int, double> ends;
  queue.push(0.5, Event::arrived, 0);
  while (!queue.empty()) {
    const Event event = queue.pop();
    if (event.type() == Event::arrived) network.send(event.time, 0, 2, kBetween, 1e9);
    if (event.type() == Event::transferred && network.transferred(event.time, event)) {
      ends[static_cast<int>(event.id)] = event.time;
    }
  }
  EXPECT_NEAR(ends.at(0), 1.5, 1e-9);
  EXPECT_NEAR(ends.at(1), 2.0, 1e-9);
}

// A collective meets a message on one member's port: all members go at half the pace.
TEST(Network, CollectivesShareToo) {
  EventQueue queue;
  Network network(kFabric, 2, 4, queue);
  CollectiveLoad load;
  load.bytes[kBetween] = 2e9;
  network.start_collective(0, 0, load);
  network.send(0, 2, 6, kBetween, 0.5e9);
  const auto ends = run(queue, network);
  EXPECT_NEAR(ends.at(0), 1.0, 1e-9);
  EXPECT_NEAR(ends.at(-1), 2.5, 1e-9);
}

TEST(Network, RingAndTreeAreTheFormulas) {
  for (int n = 1; n <= 300; ++n) {
    Fabric fabric = kFabric;
    const double bytes = 3e8;
    for (const bool across : {false, true}) {
      const int per_node = across ? 1 : n;
      const planner::Link link = across ? fabric.between : fabric.inside;
      fabric.algorithm = Algorithm::ring;
      const auto all = collective_load(fabric, Collective::all_reduce, bytes, n, per_node);
      const double ring = planner::ring_all_reduce_time(bytes, n, link.bandwidth, link.latency);
      EXPECT_NEAR(all.seconds(fabric), ring, 1e-9) << n;
      for (const auto kind : {Collective::reduce_scatter, Collective::all_gather}) {
        EXPECT_NEAR(collective_load(fabric, kind, bytes, n, per_node).seconds(fabric), ring / 2,
                    1e-9);
      }
      fabric.algorithm = Algorithm::tree;
      const double levels = std::ceil(std::log2(n));
      const double tree = n == 1 ? 0 : 2 * bytes / link.bandwidth + 2 * levels * link.latency;
      EXPECT_NEAR(
          collective_load(fabric, Collective::all_reduce, bytes, n, per_node).seconds(fabric), tree,
          1e-9);
      fabric.algorithm = Algorithm::automatic;
      EXPECT_NEAR(
          collective_load(fabric, Collective::all_reduce, bytes, n, per_node).seconds(fabric),
          std::min(ring, tree), 1e-9);
    }
  }
}

// Several rings leave a node side by side; how many, devices and rails decide.
TEST(Network, RingsThroughSeveralNodes) {
  Fabric fabric = kFabric;
  const double volume = 2 * 15.0 / 16 * 8e9;
  const auto load = collective_load(fabric, Collective::all_reduce, 8e9, 16, 8);
  EXPECT_NEAR(load.bytes[kInside], volume, 1);
  EXPECT_NEAR(load.bytes[kBetween], volume / 8, 1);
  EXPECT_NEAR(load.latency, 2 * (7 * 1e-6 + 1 * 5e-6), 1e-15);
  fabric.rails = 2;
  EXPECT_NEAR(collective_load(fabric, Collective::all_reduce, 8e9, 16, 8).bytes[kBetween],
              volume / 2, 1);
}

// Worked examples: 200 MB over 16 ranks at 100 GB/s, 14 GB over 8 at 600 GB/s.
TEST(Network, WorkedRings) {
  const Fabric hundred{{100e9, 0}, {100e9, 0}, 1, Algorithm::ring};
  EXPECT_NEAR(collective_load(hundred, Collective::all_reduce, 200e6, 16, 1).seconds(hundred),
              3.75e-3, 1e-12);
  const Fabric six{{600e9, 0}, {100e9, 0}, 8, Algorithm::ring};
  EXPECT_NEAR(collective_load(six, Collective::all_reduce, 14e9, 8, 8).seconds(six), 40.8e-3, 5e-5);
}

TEST(Network, NamesOfAlgorithms) {
  EXPECT_EQ(parse_algorithm("tree"), Algorithm::tree);
  EXPECT_THROW(parse_algorithm("rings"), UsageError);
}

}  // namespace
}  // namespace tessera::simulator
