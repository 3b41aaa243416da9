#include "tessera/core/param_spec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/core/errors.h"

namespace tessera {
namespace {

using Segments = std::vector<ParamSpec::Segment>;

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

// Which rank-local elements there are, one by one, by the words of the header: walk the whole
// parameter, and keep an element where its segment's part is this rank's.
struct Slow {
  std::vector<std::int64_t> whole;  // the whole's index of each local element
  std::vector<bool> counted;
};
Slow slow_elements(const ParamSpec& spec, int t, int tp) {
  Slow out;
  const std::int64_t n = numel_of(spec.shape);
  for (std::int64_t i = 0; i < n; ++i) {
    if (spec.tp_dim == -1) {
      out.whole.push_back(i);
      out.counted.push_back(t == 0);
      continue;
    }
    std::int64_t rest = i, at = 0;
    for (int dim = static_cast<int>(spec.shape.size()) - 1; dim >= spec.tp_dim; --dim) {
      at = rest % spec.shape[static_cast<std::size_t>(dim)];
      rest /= spec.shape[static_cast<std::size_t>(dim)];
    }
    Segments segments = spec.segments;
    if (segments.empty()) segments = {{spec.shape[static_cast<std::size_t>(spec.tp_dim)], tp}};
    for (const ParamSpec::Segment& segment : segments) {
      if (at >= segment.length) {
        at -= segment.length;
        continue;
      }
      const std::int64_t parts = segment.parts == 0 ? tp : segment.parts;
      const std::int64_t part = at / (segment.length / parts);
      // A rank has all parts p with p · tp / parts = t, or, where parts are fewer, t · parts / tp.
      const bool mine = parts >= tp ? part * tp / parts == t : part == t * parts / tp;
      if (mine) {
        out.whole.push_back(i);
        out.counted.push_back(parts >= tp || t == 0 || (t - 1) * parts / tp != part);
      }
      break;
    }
  }
  return out;
}

void expect_right(const ParamSpec& spec, int tp) {
  std::vector<int> times(static_cast<std::size_t>(numel_of(spec.shape)), 0);
  for (int t = 0; t < tp; ++t) {
    SCOPED_TRACE("rank " + std::to_string(t) + " of " + std::to_string(tp));
    const Slow slow = slow_elements(spec, t, tp);
    ASSERT_EQ(numel_of(local_shape(spec, t, tp)), static_cast<std::int64_t>(slow.whole.size()));
    std::vector<std::int64_t> whole;
    const std::vector<Run> runs = local_runs(spec, t, tp);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      ASSERT_GT(runs[i].count, 0);
      ASSERT_EQ(runs[i].local, static_cast<std::int64_t>(whole.size()));
      if (i > 0) {
        ASSERT_GT(runs[i].whole, runs[i - 1].whole + runs[i - 1].count) << "not merged";
      }
      for (std::int64_t k = 0; k < runs[i].count; ++k) whole.push_back(runs[i].whole + k);
    }
    ASSERT_EQ(whole, slow.whole);
    std::vector<bool> counted(whole.size(), false);
    for (const Run& run : counted_runs(spec, t, tp)) {
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
  for (const int n : times) ASSERT_EQ(n, 1) << "all ranks together count every element once";
}

TEST(ParamSpec, NotCut) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {7}, {3, 5}, {0}, {4, 0}}) {
    for (int tp : {1, 2, 3, 8}) expect_right({"w", shape, -1, {}}, tp);
  }
}

TEST(ParamSpec, CutAlongEveryDim) {
  for (int tp : {1, 2, 3, 4, 6}) {
    for (std::int64_t a : {1, 2, 5}) {
      for (std::int64_t b : {1, 3}) {
        const std::int64_t cut = 12;
        expect_right({"w", {cut}, 0, {}}, tp);
        expect_right({"w", {cut, a}, 0, {}}, tp);
        expect_right({"w", {a, cut}, 1, {}}, tp);
        expect_right({"w", {a, cut, b}, 1, {}}, tp);
        expect_right({"w", {a, b, cut}, 2, {}}, tp);
        expect_right({"w", {cut, a, b}, 0, {}}, tp);
        expect_right({"w", {0, cut, b}, 1, {}}, tp);
      }
    }
  }
}

TEST(ParamSpec, SegmentsAndCopies) {
  for (int tp : {1, 2, 4, 8}) {
    for (std::int64_t kv : {1, 2, 4, 8}) {
      for (std::int64_t head : {1, 3}) {
        // q of eight heads, then k and v of fewer; as rows, as columns, and with something behind.
        const Segments segments = {{8 * head, 8}, {kv * head, kv}, {kv * head, kv}};
        const std::int64_t size = (8 + 2 * kv) * head;
        expect_right({"qkv", {size, 5}, 0, segments}, tp);
        expect_right({"qkv", {size}, 0, segments}, tp);
        expect_right({"qkv", {5, size}, 1, segments}, tp);
        expect_right({"qkv", {2, size, 3}, 1, segments}, tp);
      }
    }
    expect_right({"gate_up", {32, 3}, 0, {{16, 0}, {16, 0}}}, tp);
    expect_right({"with_nothing", {16, 3}, 0, {{0, 1}, {16, 0}, {0, 0}}}, tp);
  }
}

// Sizes that tp does not divide, and multiples that a rank's share is rounded up to: every element
// is on one rank, in order, at its place among the padded rows of that rank.
TEST(ParamSpec, WhatIsPaddedIsInNoRun) {
  for (const std::int64_t size : {0, 1, 2, 5, 12, 101, 257}) {
    for (const int tp : {1, 2, 3, 4, 7}) {
      for (const std::int64_t pad_to : {1, 4, 64}) {
        for (const int dim : {0, 1}) {
          SCOPED_TRACE(std::to_string(size) + " over " + std::to_string(tp) + " to " +
                       std::to_string(pad_to) + " along " + std::to_string(dim));
          const std::int64_t other = 3;
          ParamSpec spec{"w", {other, other}, dim, {}, pad_to};
          spec.shape[static_cast<std::size_t>(dim)] = size;
          std::int64_t room = 0;  // the least multiple with which all ranks together have enough
          while (room * tp < size) room += pad_to;
          std::vector<int> times(static_cast<std::size_t>(size * other), 0);
          for (int t = 0; t < tp; ++t) {
            const std::vector<std::int64_t> local = local_shape(spec, t, tp);
            EXPECT_EQ(local[static_cast<std::size_t>(dim)], room);
            EXPECT_EQ(local[static_cast<std::size_t>(1 - dim)], other);
            EXPECT_EQ(local_runs(spec, t, tp), counted_runs(spec, t, tp));
            for (const tessera::Run& run : local_runs(spec, t, tp)) {
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

TEST(ParamSpec, WhatIsWrongIsSaid) {
  const ParamSpec spec{"w", {6, 4}, 0, {{6, 6}}};
  EXPECT_THROW(local_runs(spec, 0, 4), UsageError);
  EXPECT_THROW(local_shape({"w", {6, 4}, 0, {}, 0}, 0, 1), UsageError);
  EXPECT_THROW(local_runs(spec, 2, 2), UsageError);
  EXPECT_THROW(local_runs(spec, -1, 2), UsageError);
  EXPECT_THROW(local_shape(spec, 0, 0), UsageError);
  EXPECT_THROW(local_shape({"w", {6, 4}, 2, {}}, 0, 1), UsageError);
  EXPECT_THROW(local_shape({"w", {6, 4}, -2, {}}, 0, 1), UsageError);
  EXPECT_THROW(local_shape({"w", {-6, 4}, 0, {}}, 0, 1), UsageError);
  EXPECT_THROW(counted_runs({"w", {6}, 0, {{6, 3}}}, 0, 2), UsageError);
  EXPECT_THROW(counted_runs({"w", {6}, 0, {{6, 4}}}, 0, 2), UsageError);
  EXPECT_THROW(counted_runs({"w", {6}, 0, {{4, 2}}}, 0, 2), UsageError);
  EXPECT_THROW(counted_runs({"w", {6}, 0, {{6, -2}}}, 0, 2), UsageError);
  try {
    local_runs(spec, 0, 4);
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("w [6, 4]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
