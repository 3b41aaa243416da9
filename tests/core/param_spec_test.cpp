#include "tessera/core/param_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tessera/core/errors.h"

namespace tessera {
namespace {

using Segments = std::vector<ParamSpec::Segment>;
using Runs = std::vector<Run>;  // inside a test, Run is a member function of the test

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

// Reference: visits the elements of the whole parameter one by one and keeps those whose part of
// its segment belongs to the rank, for every cut.
struct Slow {
  std::vector<std::int64_t> whole;  // index in the whole parameter of each local element
  std::vector<bool> counted;
};
Slow slow_elements(const ParamSpec& spec, const Axes& axes, const Coordinate& at) {
  Slow out;
  const std::int64_t n = numel_of(spec.shape);
  for (std::int64_t i = 0; i < n; ++i) {
    bool mine = true, counted = spec.cut_along(Axis::tp) || at[Axis::tp] == 0;
    for (const ParamSpec::Cut& cut : spec.cuts) {
      const int r = at[cut.axis], ranks = axes.size(cut.axis);
      std::int64_t rest = i, index = 0;
      for (int dim = static_cast<int>(spec.shape.size()) - 1; dim >= cut.dim; --dim) {
        index = rest % spec.shape[static_cast<std::size_t>(dim)];
        rest /= spec.shape[static_cast<std::size_t>(dim)];
      }
      Segments segments = cut.segments;
      if (segments.empty()) segments = {{spec.shape[static_cast<std::size_t>(cut.dim)], ranks}};
      for (const ParamSpec::Segment& segment : segments) {
        if (index >= segment.length) {
          index -= segment.length;
          continue;
        }
        const std::int64_t parts = segment.parts == 0 ? ranks : segment.parts;
        const std::int64_t part = index / (segment.length / parts);
        // A rank has all parts p with p · ranks / parts = r or, with fewer parts than ranks,
        // r · parts / ranks.
        mine = mine && (parts >= ranks ? part * ranks / parts == r : part == r * parts / ranks);
        counted = counted && (parts >= ranks || r == 0 || (r - 1) * parts / ranks != part);
        break;
      }
    }
    if (!mine) continue;
    out.whole.push_back(i);
    out.counted.push_back(counted);
  }
  return out;
}

// Compares every rank that holds elements of the parameter with the reference.
void expect_right(const ParamSpec& spec, const Axes& axes) {
  std::vector<int> held(static_cast<std::size_t>(numel_of(spec.shape)), 0), times = held;
  for (std::int64_t rank = 0; rank < axes.world(); ++rank) {
    const Coordinate at = axes.coordinate_of(rank);
    // Without a cut along pp one stage has the parameter.
    if (!spec.cut_along(Axis::pp) && at.pp() != axes.pp() - 1) continue;
    SCOPED_TRACE("rank " + std::to_string(rank) + " of " + axes.text());
    const Slow slow = slow_elements(spec, axes, at);
    ASSERT_EQ(numel_of(local_shape(spec, axes, at)), static_cast<std::int64_t>(slow.whole.size()));
    std::vector<std::int64_t> whole;
    const std::vector<Run> runs = local_runs(spec, axes, at);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      ASSERT_GT(runs[i].count, 0);
      ASSERT_EQ(runs[i].local, static_cast<std::int64_t>(whole.size()));
      if (i > 0) {
        ASSERT_GT(runs[i].whole, runs[i - 1].whole + runs[i - 1].count) << "not merged";
      }
      for (std::int64_t k = 0; k < runs[i].count; ++k) whole.push_back(runs[i].whole + k);
    }
    ASSERT_EQ(whole, slow.whole);
    for (const std::int64_t i : whole) ++held[static_cast<std::size_t>(i)];
    std::vector<bool> counted(whole.size(), false);
    for (const Run& run : counted_runs(spec, axes, at)) {
      for (std::int64_t k = 0; k < run.count; ++k) {
        const auto local = static_cast<std::size_t>(run.local + k);
        ASSERT_EQ(slow.whole.at(local), run.whole + k);
        ASSERT_FALSE(counted[local]);
        counted[local] = true;
        ++times[static_cast<std::size_t>(run.whole + k)];
      }
    }
    ASSERT_EQ(counted, slow.counted);
  }
  for (const int n : held) ASSERT_GE(n, 1) << "every element is on a rank";
  for (const int n : times) ASSERT_EQ(n, 1) << "all ranks together count every element once";
}
void expect_right(const ParamSpec& spec, int tp) { expect_right(spec, Axes{{Axis::tp, tp}}); }

TEST(ParamSpec, WithoutCutsIsWholeOnEveryRank) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {7}, {3, 5}, {0}, {4, 0}}) {
    for (int tp : {1, 2, 3, 8}) expect_right({"w", shape}, tp);
  }
}

TEST(ParamSpec, CanBeCutAlongEveryDim) {
  for (int tp : {1, 2, 3, 4, 6}) {
    for (std::int64_t a : {1, 2, 5}) {
      for (std::int64_t b : {1, 3}) {
        const std::int64_t cut = 12;
        expect_right({"w", {cut}, {{Axis::tp, 0}}}, tp);
        expect_right({"w", {cut, a}, {{Axis::tp, 0}}}, tp);
        expect_right({"w", {a, cut}, {{Axis::tp, 1}}}, tp);
        expect_right({"w", {a, cut, b}, {{Axis::tp, 1}}}, tp);
        expect_right({"w", {a, b, cut}, {{Axis::tp, 2}}}, tp);
        expect_right({"w", {cut, a, b}, {{Axis::tp, 0}}}, tp);
        expect_right({"w", {0, cut, b}, {{Axis::tp, 1}}}, tp);
      }
    }
  }
}

TEST(ParamSpec, CutsSegmentsAndCountsCopiesOnce) {
  for (int tp : {1, 2, 4, 8}) {
    for (std::int64_t kv : {1, 2, 4, 8}) {
      for (std::int64_t head : {1, 3}) {
        // q of eight heads, then k and v of fewer; as rows, as columns, and with trailing dims.
        const Segments segments = {{8 * head, 8}, {kv * head, kv}, {kv * head, kv}};
        const std::int64_t size = (8 + 2 * kv) * head;
        expect_right({"qkv", {size, 5}, {{Axis::tp, 0, segments}}}, tp);
        expect_right({"qkv", {size}, {{Axis::tp, 0, segments}}}, tp);
        expect_right({"qkv", {5, size}, {{Axis::tp, 1, segments}}}, tp);
        expect_right({"qkv", {2, size, 3}, {{Axis::tp, 1, segments}}}, tp);
      }
    }
    expect_right({"gate_up", {32, 3}, {{Axis::tp, 0, {{16, 0}, {16, 0}}}}}, tp);
    expect_right({"with_nothing", {16, 3}, {{Axis::tp, 0, {{0, 1}, {16, 0}, {0, 0}}}}}, tp);
  }
}

// Sizes that tp does not divide, and multiples that shards are padded to: every element is on one
// rank, in order, at its offset among the padded rows of that rank.
TEST(ParamSpec, PaddingIsInNoRun) {
  for (const std::int64_t size : {0, 1, 2, 5, 12, 101, 257}) {
    for (const int tp : {1, 2, 3, 4, 7}) {
      for (const std::int64_t pad_to : {1, 4, 64}) {
        for (const int dim : {0, 1}) {
          SCOPED_TRACE(std::to_string(size) + " over " + std::to_string(tp) + " to " +
                       std::to_string(pad_to) + " along " + std::to_string(dim));
          const std::int64_t other = 3;
          ParamSpec spec{"w", {other, other}, {{Axis::tp, dim, {}, pad_to}}};
          spec.shape[static_cast<std::size_t>(dim)] = size;
          std::int64_t room = 0;  // the smallest multiple for which all ranks together have enough
          while (room * tp < size) room += pad_to;
          std::vector<int> times(static_cast<std::size_t>(size * other), 0);
          const Axes axes{{Axis::tp, tp}};
          for (int t = 0; t < tp; ++t) {
            const Coordinate at{{Axis::tp, t}};
            const std::vector<std::int64_t> local = local_shape(spec, axes, at);
            EXPECT_EQ(local[static_cast<std::size_t>(dim)], room);
            EXPECT_EQ(local[static_cast<std::size_t>(1 - dim)], other);
            EXPECT_EQ(local_runs(spec, axes, at), counted_runs(spec, axes, at));
            for (const tessera::Run& run : local_runs(spec, axes, at)) {
              for (std::int64_t i = 0; i < run.count; ++i) {
                const std::int64_t row = (run.local + i) / local[1],
                                   col = (run.local + i) % local[1];
                const std::int64_t want =
                    dim == 0 ? (t * room + row) * other + col : row * size + t * room + col;
                ASSERT_EQ(run.whole + i, want);
                ++times[static_cast<std::size_t>(run.whole + i)];
              }
            }
          }
          for (const int n : times) ASSERT_EQ(n, 1);
        }
      }
    }
  }
}

// Random shapes with a cut along tp, along pp (standing in for a future axis), both or neither.
TEST(ParamSpec, CutsOfSeveralAxesCoverEveryElementAndCountItOnce) {
  std::mt19937_64 random(7);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  int two_cuts = 0, shared = 0;
  for (int i = 0; i < 600; ++i) {
    const Axes axes{{Axis::tp, 1 << below(4)}, {Axis::pp, static_cast<int>(1 + below(4))}};
    ParamSpec spec{"w", std::vector<std::int64_t>(static_cast<std::size_t>(1 + below(4)))};
    for (std::int64_t& size : spec.shape) size = below(10) == 0 ? 0 : 1 + below(4);
    std::vector<int> dims(spec.shape.size());
    std::iota(dims.begin(), dims.end(), 0);
    std::shuffle(dims.begin(), dims.end(), random);
    for (const Axis axis : {Axis::tp, Axis::pp}) {
      if (dims.empty() || below(4) == 0) continue;
      ParamSpec::Cut cut{axis, dims.back()};
      dims.pop_back();
      std::int64_t& size = spec.shape[static_cast<std::size_t>(cut.dim)];
      const std::int64_t ranks = axes.size(axis);
      size = ranks * below(4);
      for (std::int64_t left = below(4); left > 0; --left) {
        if (cut.segments.empty()) size = 0;
        // 0, or a number of parts that divides the ranks or is a multiple of them.
        std::int64_t parts = below(3) * ranks;
        if (below(2) == 0) {
          do parts = 1 + below(ranks);
          while (ranks % parts != 0);
        }
        shared += parts > 0 && parts < ranks;
        cut.segments.push_back({(parts == 0 ? ranks : parts) * below(3), parts});
        size += cut.segments.back().length;
      }
      spec.cuts.push_back(std::move(cut));
    }
    two_cuts += spec.cuts.size() == 2;
    SCOPED_TRACE("case " + std::to_string(i));
    expect_right(spec, axes);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(two_cuts, 100);
  EXPECT_GT(shared, 100);
}

TEST(ParamSpec, LocalTensorOfTwoCutsIsABlock) {
  const ParamSpec spec{"w", {4, 2, 6}, {{Axis::tp, 2}, {Axis::pp, 0}}};
  const Axes axes{{Axis::tp, 3}, {Axis::pp, 2}, {Axis::dp_shard, 5}};
  const Coordinate at{{Axis::tp, 1}, {Axis::pp, 1}, {Axis::dp_shard, 4}};
  EXPECT_EQ(local_shape(spec, axes, at), (std::vector<std::int64_t>{2, 2, 2}));
  const Runs runs = {{26, 0, 2}, {32, 2, 2}, {38, 4, 2}, {44, 6, 2}};
  EXPECT_EQ(local_runs(spec, axes, at), runs);
  EXPECT_EQ(counted_runs(spec, axes, at), runs);
  // With padding along both dims: 3 × 2, of which 2 × 1 are elements.
  const ParamSpec odd{"w", {5, 3}, {{Axis::pp, 0}, {Axis::tp, 1}}};
  const Axes four{{Axis::tp, 2}, {Axis::pp, 2}};
  const Coordinate last{{Axis::tp, 1}, {Axis::pp, 1}};
  EXPECT_EQ(local_shape(odd, four, last), (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(local_runs(odd, four, last), (Runs{{11, 0, 1}, {14, 2, 1}}));
}

// Data-parallel ranks hold the same tensor, and each parameter is on one stage.
TEST(ParamSpec, OtherStagesAndReplicasDoNotChangeTheCount) {
  const Axes axes = "dp=4,dp_replicate=2,tp=2,pp=2";
  for (std::int64_t rank = 0; rank < axes.world(); ++rank) {
    const Coordinate at = axes.coordinate_of(rank);
    const Runs all = {{0, 0, 6}};
    EXPECT_EQ(local_runs({"norm", {6}}, axes, at), all);
    EXPECT_EQ(counted_runs({"norm", {6}}, axes, at), at.tp() == 0 ? all : Runs());
  }
}

// The product of the other sizes of an empty parameter may overflow.
TEST(ParamSpec, EmptyParametersHaveNoRuns) {
  const std::int64_t large = std::int64_t{1} << 53;
  const ParamSpec spec{"w", {large, large, 0}, {{Axis::tp, 2}}};
  EXPECT_TRUE(local_runs(spec, {{Axis::tp, 2}}, {}).empty());
  EXPECT_TRUE(counted_runs(spec, {{Axis::tp, 2}}, {}).empty());
}

TEST(ParamSpec, EqualityIgnoresPadding) {
  const ParamSpec spec{"w", {6, 4}, {{Axis::tp, 0}}};
  EXPECT_EQ(spec, (ParamSpec{"w", {6, 4}, {{Axis::tp, 0, {}, 8}}}));
  EXPECT_NE(spec, (ParamSpec{"w", {6, 4}, {{Axis::tp, 1}}}));
  EXPECT_NE(spec, (ParamSpec{"w", {6, 4}, {{Axis::pp, 0}}}));
  EXPECT_NE(spec, (ParamSpec{"w", {6, 4}}));
}

TEST(ParamSpec, RejectsInvalidCutsAndCoordinates) {
  const auto error = [](const ParamSpec& spec, const Axes& axes, const Coordinate& at) {
    std::string message;
    for (int i = 0; i < 3; ++i) {
      try {
        if (i == 0) local_shape(spec, axes, at);
        if (i == 1) local_runs(spec, axes, at);
        if (i == 2) counted_runs(spec, axes, at);
        ADD_FAILURE() << spec.name << " is accepted";
      } catch (const UsageError& e) {
        message = e.what();
      }
    }
    return message;
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos
               ? ::testing::AssertionSuccess()
               : ::testing::AssertionFailure() << text << " has no " << part;
  };
  const ParamSpec spec{"w", {6, 4}, {{Axis::tp, 0, {{6, 6}}}}};
  const Axes one, two{{Axis::tp, 2}};
  EXPECT_TRUE(contains(error(spec, {{Axis::tp, 4}}, {}), "w [6, 4]"));
  EXPECT_TRUE(contains(error(spec, two, {{Axis::tp, 2}}), "tp=2 is outside a mesh with tp=2"));
  EXPECT_TRUE(contains(error(spec, two, {{Axis::tp, -1}}), "tp=-1"));
  EXPECT_TRUE(contains(error(spec, {{Axis::tp, 0}}, {}), "tp=0"));
  EXPECT_TRUE(contains(error(spec, two, {{Axis::pp, 1}}), "pp=1"));
  error({"w", {6, 4}, {{Axis::tp, 0, {}, 0}}}, one, {});
  error({"w", {6, 4}, {{Axis::tp, 2}}}, one, {});
  error({"w", {6, 4}, {{Axis::tp, -1}}}, one, {});
  error({"w", {-6, 4}, {{Axis::tp, 0}}}, one, {});
  for (const ParamSpec::Segment segment : Segments{{6, 3}, {6, 4}, {4, 2}, {6, -2}}) {
    error({"w", {6}, {{Axis::tp, 0, {segment}}}}, two, {});
  }
  EXPECT_TRUE(contains(error({"w", {6, 4}, {{Axis::tp, 0}, {Axis::pp, 0}}}, one, {}),
                       "dim 0 is cut along tp and pp"));
  EXPECT_TRUE(contains(error({"w", {6, 4}, {{Axis::tp, 0}, {Axis::tp, 1}}}, one, {}),
                       "tp cuts dims 0 and 1"));
  for (const Axis axis : {Axis::dp_shard, Axis::dp_replicate}) {
    EXPECT_TRUE(contains(error({"w", {6, 4}, {{axis, 0}}}, one, {}), "hold the same tensor"));
  }
}

}  // namespace
}  // namespace tessera
