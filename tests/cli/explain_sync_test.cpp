// Properties of the timed passes of `tessera explain sync`.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tests/processes.h"
#include "tests/text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

Json explain_sync(const std::vector<std::string>& flags) {
  std::vector<std::string> command = {TESSERA_PROGRAM, "explain", "sync", "--json"};
  command.insert(command.end(), flags.begin(), flags.end());
  const Outcome outcome = outcome_of(command);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return Json::parse(outcome.out);
}

const Json& way_of(const Json& answer, const std::string& name) {
  for (const Json& way : answer["ways"]) {
    if (way["name"] == name) return way;
  }
  throw std::runtime_error("no method " + name);
}

int count_of(const Json& way, const std::string& op) {
  for (const Json& each : way["collectives"]) {
    if (each["op"] == op) return each["count"];
  }
  return 0;
}

// Checks that the spans of a method are of one pass, on one clock.
void expect_one_clock(const Json& way, int ranks) {
  double first = 1e9, last = 0;
  std::map<std::pair<int, std::string>, double> lanes;  // end of the previous span
  std::map<std::string, std::vector<std::pair<double, double>>> calls;
  for (const Json& span : way["spans"]) {
    const double begin = span["begin"], end = span["end"];
    EXPECT_LE(begin, end) << span;
    first = std::min(first, begin);
    last = std::max(last, end);
    double& previous = lanes[{span["rank"], span["lane"]}];
    EXPECT_GE(begin, previous) << span << " overlaps the previous span of its lane";
    previous = end;
    if (span["lane"] == "comm") calls[span["what"]].emplace_back(begin, end);
  }
  EXPECT_DOUBLE_EQ(first, 0);
  EXPECT_DOUBLE_EQ(last, way["seconds"].get<double>()) << "the time is of another pass";
  EXPECT_FALSE(calls.empty());
  for (const auto& [what, times] : calls) {
    EXPECT_EQ(times.size(), static_cast<std::size_t>(ranks)) << what;
    double begin = 0, end = 1e9;
    for (const auto& each : times) {
      begin = std::max(begin, each.first);
      end = std::min(end, each.second);
    }
    EXPECT_LE(begin, end) << what << " ends on a rank before it begins on another";
  }
}

TEST(ExplainSync, TimesAllRanksOnOneClock) {
  for (const int ranks : {2, 3}) {
    const Json answer = explain_sync({"--ranks", str(ranks), "--width", "96", "--layers", "3",
                                      "--bucket-size", "40000", "--rounds", "3"});
    ASSERT_EQ(answer["ways"].size(), 5U);
    for (const Json& way : answer["ways"]) {
      SCOPED_TRACE(way["name"].get<std::string>());
      expect_one_clock(way, ranks);
    }
    for (const Json& bucket : answer["buckets"]) {
      EXPECT_GT(bucket["ready"], 0) << bucket;
      EXPECT_LE(bucket["ready"], bucket["sent"]) << bucket;
      EXPECT_LE(bucket["sent"], bucket["done"]) << bucket;
    }
  }
}

TEST(ExplainSync, UsesTheBucketSizeInTheTimedPasses) {
  constexpr int kLayers = 4, kWidth = 64;
  for (const int size : {1, 300, 17'000, 40'000, 10'000'000}) {
    int buckets = 0, open = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const int bytes : {4 * kWidth, 4 * kWidth * kWidth}) {  // bias, weight
        if (open == 0) ++buckets;
        open = open + bytes >= size ? 0 : open + bytes;
      }
    }
    const Json answer = explain_sync({"--width", str(kWidth), "--layers", str(kLayers), "--rounds",
                                      "1", "--bucket-size", str(size)});
    SCOPED_TRACE(size);
    EXPECT_EQ(answer["buckets"].size(), static_cast<std::size_t>(buckets));
    EXPECT_EQ(count_of(way_of(answer, "per-parameter"), "all-reduce"), 2 * kLayers);
    EXPECT_EQ(count_of(way_of(answer, "bucketed"), "all-reduce"), buckets);
    EXPECT_EQ(count_of(way_of(answer, "overlapped"), "all-reduce"), buckets);
    for (const char* stage : {"zero-2", "zero-3"}) {
      const Json& way = way_of(answer, stage);
      EXPECT_EQ(count_of(way, "reduce-scatter"), buckets) << stage;
      EXPECT_EQ(count_of(way, "all-reduce"), 0) << stage;
    }
    // ZeRO-2 gathers every layer after the step, ZeRO-3 in forward and in backward.
    EXPECT_EQ(count_of(way_of(answer, "zero-2"), "all-gather"), kLayers);
    EXPECT_EQ(count_of(way_of(answer, "zero-3"), "all-gather"), 2 * kLayers);
    const double sent = way_of(answer, "overlapped")["sent_bytes"];
    EXPECT_DOUBLE_EQ(way_of(answer, "zero-2")["sent_bytes"], sent);
    EXPECT_DOUBLE_EQ(way_of(answer, "zero-3")["sent_bytes"], 1.5 * sent);
  }
}

// Returns the number of collectives that begin before backward of their rank ends.
std::ptrdiff_t begun_in_backward(const Json& way) {
  std::map<int, double> end;
  const Json& spans = way["spans"];
  for (const Json& span : spans) {
    if (span["what"] == "backward") end[span["rank"]] = span["end"];
  }
  return std::count_if(spans.begin(), spans.end(), [&](const Json& span) {
    return span["lane"] == "comm" && span["begin"] < end.at(span["rank"]);
  });
}

TEST(ExplainSync, DefaultsOverlapSeveralBuckets) {
  // On a busy machine the communicating threads may get no core before backward ends, so one run
  // of several must show the overlap.
  std::ptrdiff_t most = 0;
  for (int run = 0; run < 12 && most < 2; ++run) {
    const Json answer = explain_sync({"--rounds", "3"});
    ASSERT_GE(answer["buckets"].size(), 3U);
    EXPECT_LT(answer["buckets"].front()["ready"], answer["buckets"].back()["ready"]);
    EXPECT_EQ(begun_in_backward(way_of(answer, "per-parameter")), 0);
    EXPECT_EQ(begun_in_backward(way_of(answer, "bucketed")), 0);
    most = std::max(most, begun_in_backward(way_of(answer, "overlapped")));
  }
  EXPECT_GE(most, 2);
}

TEST(ExplainSync, RefusesABucketSizeOfZero) {
  const Outcome outcome = outcome_of({TESSERA_PROGRAM, "explain", "sync", "--bucket-size", "0"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(contains(outcome.err, "--bucket-size: must be at least 1 byte")) << outcome.err;
}

}  // namespace
}  // namespace tessera
