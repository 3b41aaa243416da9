#include "tessera/cli/sync_report.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/text.h"

namespace tessera::cli {
namespace {

RankTimes::Time at(double ms) {
  return RankTimes::Time(std::chrono::microseconds(1'000'000 + static_cast<int>(ms * 1000)));
}

// Times of a rank whose pass begins at `begin`; the other arguments are durations. Milliseconds.
RankTimes rank_times(double begin, double forward, double backward, double wait, double optimizer) {
  RankTimes times;
  times.begin = at(begin);
  times.forward = at(begin + forward);
  times.backward = at(begin + forward + backward);
  times.synchronized = at(begin + forward + backward + wait);
  times.end = at(begin + forward + backward + wait + optimizer);
  return times;
}

SyncPass pass_of(double forward, double backward, double wait, double optimizer = 1) {
  return on_one_clock({rank_times(0, forward, backward, wait, optimizer)});
}

SyncReport report_of(SyncPass plain, SyncPass after, SyncPass during, int buckets = 4) {
  SyncReport report;
  report.cores = 2;
  const std::vector<SyncBucket> each(8, {{"w"}, 1000});
  const std::vector<SyncBucket> some(static_cast<std::size_t>(buckets), {{"w"}, 2000});
  report.ways = {{"per-parameter", "", each, {std::move(plain)}},
                 {"bucketed", "", some, {std::move(after)}},
                 {"overlapped", "", some, {std::move(during)}}};
  return report;
}

TEST(SyncReport, MeasuresAllRanksFromTheFirstBegin) {
  RankTimes first = rank_times(10, 2, 4, 3, 1), second = rank_times(13, 2, 4, 0, 1);
  first.calls = {{"all-reduce", "bucket 0", 64, at(15), at(19)}};
  second.calls = {{"all-reduce", "bucket 0", 64, at(18), at(19)}};
  first.ready["w"] = at(14);
  second.ready["w"] = at(17);
  const SyncPass pass = on_one_clock({first, second});
  EXPECT_DOUBLE_EQ(pass.seconds, 0.010);
  EXPECT_DOUBLE_EQ(pass.ready.at("w"), 0.007);
  ASSERT_EQ(pass.spans.size(), 9U);
  const SyncSpan& own = pass.spans[4];
  const SyncSpan& other = pass.spans[8];
  EXPECT_EQ(own.op, "all-reduce");
  EXPECT_DOUBLE_EQ(own.begin, 0.005);
  EXPECT_DOUBLE_EQ(other.begin, 0.008);
  EXPECT_DOUBLE_EQ(other.end, own.end);
  EXPECT_DOUBLE_EQ(pass.spans[5].begin, 0.003) << "forward of the rank that began later";
}

TEST(SyncReport, SplitsPhasesAtWaits) {
  RankTimes times = rank_times(0, 10, 10, 2, 2);
  // The second wait is across two phases, the third within the wait after backward.
  times.waits = {
      {"", "a", 0, at(3), at(4)}, {"", "b", 0, at(9), at(12)}, {"", "c", 0, at(20.5), at(21)}};
  const SyncPass pass = on_one_clock({times});
  std::string lanes;
  double last = 0;
  for (const SyncSpan& span : pass.spans) {
    lanes += span.what.substr(0, 1);
    EXPECT_DOUBLE_EQ(span.begin, last);
    last = span.end;
  }
  EXPECT_EQ(lanes, "fwfwwbwo");
  EXPECT_NEAR(pass.forward, 0.008, 1e-9);
  EXPECT_NEAR(pass.backward, 0.008, 1e-9);
  EXPECT_NEAR(pass.wait, 0.006, 1e-9);
  EXPECT_DOUBLE_EQ(last, pass.seconds);
}

TEST(SyncReport, ReportsTimeAndSpansOfTheMedianPass) {
  SyncReport report = report_of(pass_of(1, 1, 1), pass_of(1, 1, 1), pass_of(1, 1, 1));
  SyncWay& way = report.ways[0];
  way.passes = {pass_of(5, 5, 5), pass_of(1, 1, 1), pass_of(2, 2, 2)};
  for (SyncWay& each : report.ways) each.buckets.clear();
  const auto json = sync_json(report)["ways"][0];
  EXPECT_DOUBLE_EQ(json["seconds"], 0.007);
  EXPECT_DOUBLE_EQ(json["spans"].back()["end"], 0.007);
  EXPECT_DOUBLE_EQ(json["best_seconds"], 0.004);
}

TEST(SyncComparison, NamesTheTimeThatBucketsSave) {
  const std::string text =
      sync_comparison(report_of(pass_of(2, 4, 6), pass_of(2, 4, 4), pass_of(2, 4, 1)));
  EXPECT_TRUE(contains(text, "Buckets reduced during backward were faster")) << text;
  EXPECT_TRUE(contains(text, "8 ms against 13 ms")) << text;
  EXPECT_TRUE(contains(text, "Exposed communication took 1 ms instead of 6 ms")) << text;
}

TEST(SyncComparison, GivesTheReasonThatPerParameterWasFaster) {
  const SyncPass plain = pass_of(2, 4, 2), slow = pass_of(9, 9, 9);
  SyncReport report = report_of(plain, slow, pass_of(2, 9, 0));
  std::string text = sync_comparison(report);
  EXPECT_TRUE(contains(text, "One all-reduce per parameter was faster than buckets")) << text;
  EXPECT_TRUE(contains(text, "Backward took 9 ms instead of 4 ms")) << text;
  EXPECT_TRUE(contains(text, "2 ranks share 2 cores")) << text;
  report.cores = 8;
  text = sync_comparison(report);
  EXPECT_TRUE(contains(text, "cores and memory bandwidth")) << text;

  text = sync_comparison(report_of(plain, slow, pass_of(2, 4, 3), 1));
  EXPECT_TRUE(contains(text, "a single bucket")) << text;
  text = sync_comparison(report_of(plain, slow, pass_of(2, 4, 3), 8));
  EXPECT_TRUE(contains(text, "number of collectives is the same")) << text;
  text = sync_comparison(report_of(plain, slow, pass_of(2, 4, 3)));
  EXPECT_TRUE(contains(text, "gradients of 1 kB on average")) << text;
  EXPECT_TRUE(contains(text, "4 collectives instead of 8")) << text;
  text = sync_comparison(report_of(plain, slow, pass_of(4, 4, 1)));
  EXPECT_TRUE(contains(text, "Forward took 4 ms instead of 2 ms. It does not communicate")) << text;
}

TEST(SyncComparison, StatesThatPassesVaryByMoreThanTheDifference) {
  SyncReport report = report_of(pass_of(2, 4, 2), pass_of(9, 9, 9), pass_of(2, 4, 3));
  EXPECT_FALSE(contains(sync_comparison(report), "may reverse the order"));
  report.ways[2].passes = {pass_of(2, 4, 3), pass_of(2, 3, 1), pass_of(2, 4, 4)};
  EXPECT_TRUE(contains(sync_comparison(report), "may reverse the order"));
}

}  // namespace
}  // namespace tessera::cli
