#include "tessera/core/axes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tessera/core/errors.h"
#include "tests/text.h"

namespace tessera {
namespace {

// Calls `body` with every mesh whose axes have 1 to `most` ranks. Views of axes, such as ep,
// have 1.
template <typename Body>
void for_all_axes(int most, const Body& body) {
  Axes axes;
  const auto vary = [&](const auto& self, std::size_t axis) -> void {
    if (axis == kFactorAxes.size()) {
      body(axes);
      return;
    }
    for (int size = 1; size <= most; ++size) {
      axes.set(kFactorAxes[axis], size);
      self(self, axis + 1);
    }
  };
  vary(vary, 0);
}

TEST(Axis, NamesAndOrdersHoldEveryAxisOnce) {
  for (const Axis axis : kAllAxes) {
    EXPECT_EQ(axis_named(axis_name(axis)), axis);
    EXPECT_EQ(*find_axis(axis_name(axis)), axis);
    EXPECT_FALSE(axis_help(axis).empty());
    EXPECT_EQ(AxisSet::all().contains(axis), multiplies_ranks(axis));
    EXPECT_FALSE(AxisSet::all().without(axis).contains(axis));
    EXPECT_EQ(std::count(kPrintedAxes.begin(), kPrintedAxes.end(), axis), 1);
  }
  EXPECT_EQ(find_axis("xp"), nullptr);
}

TEST(PerAxis, HoldsOneValueForEachAxis) {
  PerAxis<int> values(7);
  for (const Axis axis : kAllAxes) EXPECT_EQ(values[axis], 7);
  values[Axis::dp_shard] = 1;
  EXPECT_EQ(values[Axis::tp], 7);
  EXPECT_EQ(sum(values), 7 * static_cast<int>(kAxes - 1) + 1);
  EXPECT_NE(values, PerAxis<int>(7));
  EXPECT_EQ(sum(PerAxis<double>()), 0);
}

TEST(Axes, ConvertsToTextAndBack) {
  for_all_axes(4, [](const Axes& axes) {
    EXPECT_EQ(Axes(axes.text()), axes);
    Axes again;
    for (const Axis axis : kAllAxes) again.set(axis, axes.size(axis));
    EXPECT_EQ(again, axes);
  });
  EXPECT_EQ(Axes("pp=4,dp=2").text(), "dp=2,tp=1,pp=4");
  EXPECT_EQ(Axes("tp=8").words(" × "), "dp 1 × tp 8 × pp 1");
  EXPECT_EQ(Axes(), Axes("dp=1"));
  EXPECT_EQ((Axes{{Axis::pp, 3}}), Axes("pp=3"));
  EXPECT_EQ(Axes("dp=2").with(Axis::tp, 4), Axes("dp=2,tp=4"));
}

TEST(Axes, SetsIterateOverTheirAxesInnermostFirst) {
  for (const AxisSet set : {AxisSet(), kDataAxes, kInLayerAxes, AxisSet::all()}) {
    std::vector<Axis> expected, got;
    for (const Axis axis : kAllAxes) {
      if (set.contains(axis)) expected.push_back(axis);
    }
    for (const Axis axis : set) got.push_back(axis);
    EXPECT_EQ(got, expected);
  }
  // Every axis that multiplies the ranks is for other data, other layers, or the same work.
  EXPECT_EQ(kDataAxes.with(kLayerAxes).with(kLockstepAxes), AxisSet::all());
}

TEST(Axes, WordsNameTheAxesOfASet) {
  const Axes axes = "dp=4,dp_replicate=2,cp=2,tp=2,ep=2";
  EXPECT_EQ(axes.words(" · ", kShardAxes), "dp 4 · cp 2");
  EXPECT_EQ(axes.words(" · ", {Axis::tp, Axis::pp}), "tp 2 · pp 1");
  EXPECT_EQ(axes.words(", "), "dp 4 (2 replicas) (ep 2), cp 2, tp 2, pp 1");
}

TEST(Axes, StringsConvertAsLiteralsDo) {
  const std::string text = "dp=2,tp=4";
  const Axes axes = text;
  EXPECT_EQ(axes, Axes("dp=2,tp=4"));
  EXPECT_EQ(Axes({{Axis::dp_shard, 2}}), Axes("dp=2"));  // braces are a list of axes
}

TEST(Axes, RanksAndCoordinatesAreInverse) {
  for_all_axes(4, [](const Axes& axes) {
    for (int rank = 0; rank < axes.world(); ++rank) {
      const Coordinate at = axes.coordinate_of(rank);
      ASSERT_EQ(axes.rank_of(at), rank) << axes.text();
      // [Note: rank order]: tp innermost, pp outermost.
      const int replica = at.pp() * axes.dp() + axes.index(kDataAxes, at);
      ASSERT_EQ((replica * axes.size(Axis::cp) + at[Axis::cp]) * axes.tp() + at.tp(), rank);
      for (const Axis axis : kAllAxes) {
        ASSERT_LT(at[axis], axes.size(axis));
        const std::vector<int> along = axes.ranks_along(axis, at);
        ASSERT_EQ(static_cast<int>(along.size()), axes.size(axis));
        ASSERT_EQ(along[static_cast<std::size_t>(at[axis])], rank);
      }
      for (const AxisSet set : {AxisSet(), kDataAxes, kShardAxes, kTokenAxes, kLayerAxes,
                                kLockstepAxes, kLayerAxes.with(Axis::ep)}) {
        const auto index = static_cast<std::size_t>(axes.index(set, at));
        ASSERT_EQ(axes.ranks_along(set, at).at(index), rank) << axes.text();
      }
    }
  });
}

TEST(Axes, GroupsAlongSeveralAxesHoldTheRanksEqualOnTheOtherAxes) {
  const std::vector<AxisSet> sets = {AxisSet(),
                                     Axis::tp,
                                     {Axis::tp, Axis::dp_shard},
                                     {Axis::tp, Axis::pp},
                                     {Axis::dp_shard, Axis::pp},
                                     AxisSet::all()};
  for_all_axes(3, [&](const Axes& axes) {
    for (const AxisSet set : sets) {
      for (int rank = 0; rank < axes.world(); ++rank) {
        const Coordinate at = axes.coordinate_of(rank);
        std::vector<int> expected;
        for (int other = 0; other < axes.world(); ++other) {
          bool agrees = true;
          for (const Axis axis : kAllAxes) {
            agrees = agrees && (set.contains(axis) || axes.coordinate_of(other)[axis] == at[axis]);
          }
          if (agrees) expected.push_back(other);
        }
        ASSERT_EQ(axes.ranks_along(set, at), expected) << axes.text() << " rank " << rank;
        ASSERT_EQ(axes.ranks(set), static_cast<std::int64_t>(expected.size()));
      }
    }
  });
}

TEST(Axes, ExpertRanksAreBlocksOfNeighborsThatShardState) {
  for (const char* text :
       {"dp=4,ep=2", "dp=4,tp=2,ep=4", "dp=2,cp=2,ep=4", "dp=8,dp_replicate=2,pp=2,ep=2"}) {
    const Axes axes = text;
    const int size = axes.size(Axis::ep);
    for (int rank = 0; rank < axes.world(); ++rank) {
      const Coordinate at = axes.coordinate_of(rank);
      const std::vector<int> block = axes.ranks_along(Axis::ep, at);
      ASSERT_EQ(static_cast<int>(block.size()), size) << text;
      EXPECT_EQ(block[static_cast<std::size_t>(at[Axis::ep])], rank) << text;
      const std::vector<int> shards = axes.ranks_along(kShardAxes, at);
      const auto first = std::find(shards.begin(), shards.end(), block.front());
      ASSERT_EQ((first - shards.begin()) % size, 0) << text;
      EXPECT_TRUE(std::equal(block.begin(), block.end(), first)) << text << " rank " << rank;
    }
  }
}

TEST(Axes, WorldIsTheProductOfTheSizes) {
  for_all_axes(4, [](const Axes& axes) {
    std::int64_t product = 1;
    for (const Axis axis : kAllAxes) product *= axes.size(axis);
    EXPECT_EQ(axes.world(), product);
    axes.check_world(axes.world());
    EXPECT_THROW(axes.check_world(axes.world() + 1), UsageError);
  });
  const int most = std::numeric_limits<int>::max();
  EXPECT_EQ((Axes{{Axis::dp_shard, most}, {Axis::tp, most}, {Axis::pp, most}}).world(),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_THROW((Axes{{Axis::dp_shard, 0}}).check_world(0), UsageError);
}

TEST(Axes, ErrorsNameTheAxisAndTheAllowedValues) {
  const auto says = [](const char* text) { return error_of([&] { Axes{text}; }); };
  EXPECT_TRUE(contains(says("dp=2,xp=3"), "axis \"xp\" does not exist; it must be one of"));
  EXPECT_TRUE(contains(says("dpp=2"), "did you mean dp?"));
  EXPECT_TRUE(contains(says("dp=2,dp=2"), "axis dp appears twice"));
  for (const char* bad : {"tp=0", "tp=-1", "tp=", "tp=2x", "tp=99999999999"}) {
    EXPECT_TRUE(contains(says(bad), "axis tp: got")) << bad << ": " << says(bad);
  }
  for (const char* bad : {"", "2,2,1", "dp=2,", "dp"}) {
    EXPECT_TRUE(contains(says(bad), "such as dp=2,tp=2,pp=2")) << bad << ": " << says(bad);
  }
  EXPECT_TRUE(contains(error_of([] { Axes{{Axis::dp_shard, -2}}; }), "axis dp: got -2 ranks"));
  EXPECT_TRUE(
      contains(error_of([] { Axes("dp=2,tp=2").check_world(6); }), "dp 2 × tp 2 × pp 1 for 6"));
}

}  // namespace
}  // namespace tessera
