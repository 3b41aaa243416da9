// Cost of collectives on nodes, adapters and switches, and placement of axes.

#include "tessera/planner/topology.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/planner/places.h"

namespace tessera::planner {
namespace {

// Links without latency, as in the worked examples of the ring; between nodes a tenth of the
// bandwidth.
Topology plain(double bandwidth, double latency = 0) {
  Topology t;
  t.inside = {bandwidth, latency};
  t.nic = {bandwidth / 10, 10 * latency};
  return t;
}
double time(const Topology& t, Collective kind, double bytes, const GroupPlace& place) {
  return collective_cost(t, kind, bytes, place).seconds(t);
}
GroupPlace group(int ranks, int in_node, int crossing = 1) {
  GroupPlace place{ranks, in_node, crossing, 1};
  place.span = place.nodes();
  return place;
}

TEST(Topology, RingMatchesWorkedExamples) {
  EXPECT_NEAR(time(plain(100e9), Collective::all_reduce, 200e6, group(16, 16)), 3.75e-3, 1e-9);
  EXPECT_NEAR(time(plain(600e9), Collective::all_reduce, 14e9, group(8, 8)), 40.833e-3, 1e-6);
  EXPECT_EQ(time(plain(100e9), Collective::all_reduce, 200e6, group(1, 1)), 0);
}

TEST(Topology, AllReduceEqualsReduceScatterPlusAllGather) {
  const Topology t = plain(100e9, 5e-6);
  for (const int ranks : {2, 3, 8, 16, 64, 1000}) {
    for (const int in_node : {1, 2, 8}) {
      const auto of = [&](Collective kind) { return time(t, kind, 3e8, group(ranks, in_node)); };
      const double both = of(Collective::reduce_scatter) + of(Collective::all_gather);
      // Between two nodes, trees send half as many bytes.
      if (group(ranks, in_node).nodes() == 2 && ranks > 2) {
        EXPECT_LT(of(Collective::all_reduce), both);
      } else {
        EXPECT_NEAR(of(Collective::all_reduce), both, 1e-12);
      }
    }
  }
}

// A group that fills its nodes uses all adapters; eight parallel groups share them. A group with
// one device per node can only use its own adapter.
TEST(Topology, GroupsAcrossNodesShareAdapters) {
  Topology t = plain(300e9);
  const auto all_reduce = [&](int ranks, int in_node, int crossing) {
    return time(t, Collective::all_reduce, 1e9, group(ranks, in_node, crossing));
  };
  for (const int nics : {1, 2, 4, 8}) {
    t.nics = nics;
    const double out = 2 * 63.0 / 64 * 1e9;
    EXPECT_NEAR(all_reduce(64, 8, 1), out / (nics * 30e9), 1e-6);
    EXPECT_NEAR(all_reduce(64, 1, 8), out / (30e9 * std::min(1.0, nics / 8.0)), 1e-6);
    EXPECT_NEAR(all_reduce(64, 1, 1), out / 30e9, 1e-6);
    EXPECT_LE(all_reduce(64, 2, 1), all_reduce(64, 2, 4));
    EXPECT_NEAR(time(t, Collective::send, 1e9, group(2, 1, 8)),
                1 / (30 * std::min(1.0, nics / 8.0)), 1e-6);
  }
  // Two nodes: the bytes of two trees, and not faster than the links inside.
  t.nics = 8;
  EXPECT_NEAR(all_reduce(16, 8, 1), std::max(1e9 / 240e9, 2 * 15.0 / 16 * 1e9 / 300e9), 1e-9);
  t.algorithm = Algorithm::ring;
  EXPECT_NEAR(all_reduce(16, 8, 1), 2 * 15.0 / 16 * 1e9 / 240e9, 1e-9);
  EXPECT_LT(time(t, Collective::send, 1e6, group(2, 2)),
            time(t, Collective::send, 1e6, group(2, 1)));
}

// One group over two whole nodes uses all adapters. Four parallel pairs share them, and each gets
// at most a quarter.
TEST(Topology, PairsAcrossNodesShareTheAdaptersOfOneGroup) {
  Topology t = plain(300e9);
  for (const int nics : {1, 2, 4, 8}) {
    t.nics = nics;
    const auto of = [&](int ranks, int in_node, int crossing) {
      return collective_cost(t, Collective::all_reduce, 1e9, group(ranks, in_node, crossing))
          .far_bandwidth;
    };
    EXPECT_DOUBLE_EQ(of(16, 8, 1), nics * 30e9);
    EXPECT_DOUBLE_EQ(of(2, 1, 4), 30e9 * std::min(1.0, nics / 4.0));
    EXPECT_LE(4 * of(2, 1, 4), of(16, 8, 1));
  }
}

TEST(Topology, OversubscribedSwitchesReduceBandwidth) {
  Topology t = plain(300e9);
  const double before = time(t, Collective::all_reduce, 1e9, group(64, 8));
  t.switches = {{8, 4}};
  EXPECT_EQ(time(t, Collective::all_reduce, 1e9, group(64, 8)), before);
  EXPECT_NEAR(time(t, Collective::all_reduce, 1e9, group(128, 8)) / before, 4 * 127.0 / 126, 1e-9);
  // One device in each node: on its rail.
  const double rail = time(plain(300e9), Collective::all_reduce, 1e9, group(128, 1, 8));
  EXPECT_EQ(time(t, Collective::all_reduce, 1e9, group(128, 1, 8)), rail);
  // Trees join the same devices of two nodes; rings through several devices change rails. Between
  // two nodes an all-reduce uses trees, the other collectives rings.
  t.switches = {{1, 4}};
  const Topology free = plain(300e9);
  const GroupPlace pair = group(16, 8);
  EXPECT_EQ(time(t, Collective::all_reduce, 1e9, pair),
            time(free, Collective::all_reduce, 1e9, pair));
  EXPECT_NEAR(time(t, Collective::all_gather, 1e9, pair), 4 * 15.0 / 16 * 1e9 / free.out_of_node(),
              1e-9);
  t.algorithm = Algorithm::ring;
  EXPECT_GT(time(t, Collective::all_reduce, 1e9, pair),
            3.9 * time(free, Collective::all_reduce, 1e9, pair));
}

TEST(Topology, AllToAllSendsToEveryOtherRank) {
  const Topology t = plain(300e9);
  EXPECT_NEAR(time(t, Collective::all_to_all, 1e9, group(8, 8)), 7.0 / 8 * 1e9 / 300e9, 1e-12);
  // Each of 8 devices of a node sends half of its buffer to the other node.
  EXPECT_NEAR(time(t, Collective::all_to_all, 1e9, group(16, 8)), 8 * 0.5e9 / t.out_of_node(),
              1e-12);
  // One device of a node has one adapter.
  EXPECT_NEAR(time(t, Collective::all_to_all, 1e9, group(4, 1, 8)), 0.75e9 / t.nic.bandwidth,
              1e-12);
  for (const Algorithm each : {Algorithm::ring, Algorithm::tree, Algorithm::automatic}) {
    Topology other = t;
    other.algorithm = each;
    EXPECT_EQ(time(other, Collective::all_to_all, 1e9, group(16, 8)),
              time(t, Collective::all_to_all, 1e9, group(16, 8)));
  }
}

TEST(Topology, RingLatencyGrowsWithNodesTreeLatencyDoesNot) {
  Topology t = plain(100e9, 5e-6);
  for (const Algorithm each : {Algorithm::mixed, Algorithm::ring, Algorithm::tree}) {
    t.algorithm = each;
    const double of = collective_cost(t, Collective::all_reduce, 1, group(1024, 8)).latency;
    const double far = each == Algorithm::ring ? 127 : each == Algorithm::tree ? 7 : 14;
    EXPECT_NEAR(of, 2 * ((each == Algorithm::tree ? 3 : 7) * 5e-6 + far * 50e-6), 1e-12);
  }
  t.algorithm = Algorithm::automatic;
  EXPECT_LT(time(t, Collective::all_reduce, 1e3, group(1024, 8)), 1e-3);
  EXPECT_THROW(parse_algorithm("star"), UsageError);
}

// Compares with ranks counted one by one.
TEST(Topology, PlacementMatchesCountedRanks) {
  for (const char* order : {"tp,dp,pp", "tp,pp,dp", "pp,tp,dp", "dp,tp,pp", "pp,dp,tp"}) {
    for (const int per_node : {1, 4, 8}) {
      for (const int tp : {1, 2, 8, 16}) {
        for (const int dp : {1, 4, 8}) {
          for (const int pp : {1, 2, 8}) {
            Axes axes;
            axes.set(Axis::tp, tp), axes.set_dp(dp), axes.set(Axis::pp, pp);
            Topology t;
            t.per_node = per_node;
            const auto sizes = in_order(order, axes);
            int inner = 1;
            for (const AxisSize& axis : sizes) {
              const GroupPlace place = axis_place(t, sizes, axis.axis);
              int in_first = 0;
              for (int i = 0; i < axis.size; ++i) in_first += i * inner / per_node == 0 ? 1 : 0;
              EXPECT_EQ(place.ranks, axis.size);
              EXPECT_EQ(place.in_node, in_first)
                  << order << " " << axis_name(axis.axis) << " " << per_node;
              if (axis.size > 1) {
                const bool crosses = (axis.size - 1) * inner / per_node > 0;
                EXPECT_EQ(place.nodes() > 1, crosses);
                // Devices of a node in groups that span nodes.
                if (crosses) {
                  EXPECT_EQ(place.crossing * place.in_node, per_node);
                }
              }
              inner *= axis.size;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::planner
