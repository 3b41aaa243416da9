#include "tessera/core/axes.h"

#include <gtest/gtest.h>

#include <limits>

#include "tessera/core/errors.h"
#include "tests/text.h"

namespace tessera {
namespace {

template <typename Body>
void for_all_axes(int most, const Body& body) {
  for (int dp = 1; dp <= most; ++dp) {
    for (int tp = 1; tp <= most; ++tp) {
      for (int pp = 1; pp <= most; ++pp) body(Axes::of(dp, tp, pp));
    }
  }
}

TEST(Axes, TextAndBack) {
  for_all_axes(5, [](const Axes& axes) {
    EXPECT_EQ(Axes(axes.text()), axes);
    Axes again;
    for (const Axis& axis : axes.list()) again.set(axis.name, axis.size);
    EXPECT_EQ(again, axes);
  });
  EXPECT_EQ(Axes("pp=4,dp=2").text(), "dp=2,tp=1,pp=4");
  EXPECT_EQ(Axes("tp=8").words(" × "), "dp 1 × tp 8 × pp 1");
  EXPECT_EQ(Axes(), Axes::of(1));
  EXPECT_EQ((Axes{{"pp", 3}}), Axes("pp=3"));
  EXPECT_EQ(Axes("dp=2").with("tp", 4), Axes::of(2, 4));
}

TEST(Axes, StringsConvertAsLiteralsDo) {
  const std::string text = "dp=2,tp=4";
  const Axes axes = text;
  EXPECT_EQ(axes, Axes::of(2, 4));
  EXPECT_EQ(Axes({{"dp", 2}}), Axes::of(2));  // braces are a list of axes
}

TEST(Axes, RanksAndPlacesAreInverse) {
  for_all_axes(4, [](const Axes& axes) {
    for (int rank = 0; rank < axes.world(); ++rank) {
      const Place place = axes.place_of(rank);
      ASSERT_EQ(axes.rank_of(place), rank) << axes.text();
      // As [Note: rank order] says it: tp innermost, pp outermost.
      ASSERT_EQ((place.pp() * axes.dp() + place.dp()) * axes.tp() + place.tp(), rank);
      for (const Axis& axis : axes.list()) {
        ASSERT_LT(place.at(axis.name), axis.size);
        const std::vector<int> along = axes.ranks_along(axis.name, place);
        ASSERT_EQ(static_cast<int>(along.size()), axis.size);
        ASSERT_EQ(along[static_cast<std::size_t>(place.at(axis.name))], rank);
        for (const int other : along) {
          Place there = axes.place_of(other);
          there.set(axis.name, place.at(axis.name));
          ASSERT_EQ(there, place);
        }
      }
    }
  });
}

TEST(Axes, TheWorldIsTheProduct) {
  for_all_axes(4, [](const Axes& axes) {
    EXPECT_EQ(axes.world(), axes.size("dp") * axes.size("tp") * axes.size("pp"));
    axes.check_world(axes.world());
    EXPECT_THROW(axes.check_world(axes.world() + 1), UsageError);
  });
  const int most = std::numeric_limits<int>::max();
  EXPECT_EQ(Axes::of(most, most, most).world(), std::numeric_limits<std::int64_t>::max());
  EXPECT_THROW(Axes::of(0).check_world(0), UsageError);
}

TEST(Axes, ErrorsNameTheAxisAndWhatWasWanted) {
  const auto says = [](const char* text) { return error_of([&] { Axes{text}; }); };
  EXPECT_TRUE(contains(says("dp=2,xp=3"), "axis \"xp\": there is none; wanted one of"));
  EXPECT_TRUE(contains(says("dpp=2"), "did you mean dp?"));
  EXPECT_TRUE(contains(says("dp=2,dp=2"), "axis dp: got it twice"));
  for (const char* bad : {"tp=0", "tp=-1", "tp=", "tp=2x", "tp=99999999999"}) {
    EXPECT_TRUE(contains(says(bad), "axis tp: got")) << bad << ": " << says(bad);
  }
  for (const char* bad : {"", "2,2,1", "dp=2,", "dp"}) {
    EXPECT_TRUE(contains(says(bad), "such as dp=2,tp=2,pp=2")) << bad << ": " << says(bad);
  }
  EXPECT_TRUE(contains(error_of([] { Axes::of(-2); }), "axis dp: got -2 ranks, wanted at least 1"));
  EXPECT_TRUE(
      contains(error_of([] { Axes::of(2, 2).check_world(6); }), "dp 2 × tp 2 × pp 1 for 6"));
}

}  // namespace
}  // namespace tessera
