// Comparison of ZeRO stages, and sweeps of a setting.

#include "tessera/planner/stages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/planner/sweep.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

RunConfig stages_question(const std::vector<std::pair<std::string, std::string>>& given) {
  RunConfig settings = RunConfig::for_plan();
  for (const auto& [key, value] : given) settings.set(key, value);
  return resolve(look_up(settings, built_in()));
}

TEST(Stages, MatchWorkedExamples) {
  const auto seven = compare_stages(stages_question({{"params", "7B"}, {"dp", "8"}}));
  const double state[] = {112e9, 38.5e9, 26.25e9, 14e9};
  const double copies[] = {8, 2.75, 1.875, 1};
  for (std::size_t s = 0; s < 4; ++s) {
    const Memory& m = seven[s].plan.memory;
    EXPECT_DOUBLE_EQ(m.params + m.grads + m.optimizer, state[s]);
    EXPECT_DOUBLE_EQ(seven[s].copies(), copies[s]);
  }
  // 20 GB of parameters over 64 ranks: stage 3 sends 50% more.
  const auto ten = compare_stages(stages_question({{"params", "10B"}, {"dp", "64"}}));
  EXPECT_NEAR(ten[0].sent(), 39.375e9, 1);
  EXPECT_NEAR(ten[3].sent(), 59.0625e9, 1);
  EXPECT_NEAR(ten[3].forward, 19.6875e9, 1);
  EXPECT_NEAR(ten[1].optimizer, 19.6875e9, 1);
  EXPECT_EQ(ten[0].forward + ten[0].optimizer, 0);
}

// For any settings, the phases add up to the plan's traffic, and more copies never need less
// memory.
TEST(Stages, PhasesAddUpToThePlansTraffic) {
  for (const char* dp : {"1", "2", "7", "64"}) {
    for (const char* accum : {"1", "4"}) {
      for (const char* reduce : {"auto", "each", "last"}) {
        for (const char* keep : {"false", "true"}) {
          for (const bool model : {false, true}) {
            std::vector<std::pair<std::string, std::string>> given = {
                {"dp", dp}, {"grad-accum", accum}, {"grad-reduce", reduce}, {"keep-params", keep}};
            if (model)
              given.insert(given.end(), {{"model", "llama2-7b"}, {"tp", "2"}, {"pp", "2"}});
            if (!model) given.emplace_back("params", "13B");
            const auto stages = compare_stages(stages_question(given));
            ASSERT_EQ(stages.size(), 4U);
            for (const StageAnswer& s : stages) {
              EXPECT_NEAR(s.sent(), s.plan.traffic.sent[Axis::dp_shard],
                          1e-9 * s.plan.traffic.sent[Axis::dp_shard]);
              EXPECT_GE(s.copies(), 1 - 1e-9);
              EXPECT_LE(s.copies(), stages.front().copies() * (1 + 1e-9));
            }
            EXPECT_DOUBLE_EQ(stages.front().copies(), stages.front().plan.question.dp());
            EXPECT_TRUE(nlohmann::json::parse(to_json(stages))["stages"].size() == 4);
          }
        }
      }
    }
  }
}

TEST(Stages, ShardsCoverAllParametersOnce) {
  for (const std::int64_t params : {0LL, 1LL, 7LL, 1'000'003LL}) {
    for (const int dp : {1, 2, 3, 8, 64}) {
      std::int64_t next = 0;
      for (int r = 0; r < dp; ++r) {
        const OwnedRange part = owned_range(params, dp, r);
        EXPECT_EQ(part.first, next);
        EXPECT_GE(part.last, part.first);
        EXPECT_LE(part.last - part.first, params / dp + 1);
        next = part.last;
      }
      EXPECT_EQ(next, params);
    }
  }
}

TEST(PlanSweep, ParsesRangesAndLists) {
  using Values = std::vector<std::string>;
  const std::vector<std::pair<const char*, Values>> cases = {
      {"dp=1..48", {"1", "2", "4", "8", "16", "32", "48"}},
      {"dp=6", {"6"}},
      {"dp=3,5", {"3", "5"}},
      {"zero=0,1,2,3", {"0", "1", "2", "3"}},
      {"seq=1..10:3", {"1", "4", "7", "10"}},
      {"seq=1..9:3", {"1", "4", "7"}},
      {"batch=1..4", {"1", "2", "4"}},
      {"bucket_size=1MB..4MB", {"1 MB", "2 MB", "4 MB"}},
      {"price-per-hour=0..1:0.25", {"0", "0.25", "0.5", "0.75", "1"}},
      {"recompute=none,full", {"none", "full"}}};
  for (const auto& [text, values] : cases) {
    EXPECT_EQ(parse_plan_sweep(text).values, values) << text;
  }
  EXPECT_EQ(parse_plan_sweep("batch=2").setting, "micro-batch");
  for (const char* bad : {"",
                          "dp",
                          "=1",
                          "dp=",
                          "dp=1,",
                          "dp=4..1",
                          "dp=0..4",
                          "dp=1..",
                          "dp=..4",
                          "dp=1..nan",
                          "dp=-1..4",
                          "seq=1..9:0",
                          "seq=1..9:-1",
                          "seq=1..1e30:1",
                          "seq=1..100000:1",
                          "pd=1..2",
                          "schedule=1..4",
                          "dp=1..2..4",
                          "dp=1e30",
                          "price-per-hour=nan",
                          "dp=\xc3\xa9"}) {
    try {
      parse_plan_sweep(bad);
      FAIL() << bad;
    } catch (const UsageError& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.rfind("--sweep ", 0), 0U) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    }
  }
}

// Each row equals the plan with that flag.
TEST(PlanSweep, RowsEqualSeparatePlans) {
  RunConfig settings = RunConfig::for_plan();
  settings.set("model", "gpt2-xl");
  settings.set("zero", "1");
  const PlanSweep sweep = parse_plan_sweep("tp=1..10:1");
  const auto rows = sweep_plans(sweep, settings, built_in());
  ASSERT_EQ(rows.size(), 10U);
  for (const SweptPlan& row : rows) {
    RunConfig with = settings;
    with.set("tp", row.value);
    const bool divides = 25 % std::stoi(row.value) == 0;
    EXPECT_EQ(row.plan.has_value(), divides);
    EXPECT_EQ(row.refused.empty(), divides);
    if (!divides) continue;
    const Plan plan = make_plan(look_up(with, built_in()));
    EXPECT_DOUBLE_EQ(row.plan->time.step(), plan.time.step());
    EXPECT_DOUBLE_EQ(row.plan->needed(), plan.needed());
  }
  EXPECT_EQ(nlohmann::json::parse(to_json(sweep, rows))["sweep"].size(), 10U);
  EXPECT_THROW(sweep_plans(parse_plan_sweep("tp=2,3"), settings, built_in()), UsageError);
}

TEST(Svg, IsEscapedAndDeterministic) {
  EXPECT_EQ(svg_escaped("a<b & \"c\">\n"), "a&lt;b &amp; &quot;c&quot;&gt;?");
  RunConfig settings = RunConfig::for_plan();
  settings.set("model", "gpt2-xl");
  const PlanSweep sweep = parse_plan_sweep("dp=1..8");
  const auto draw = [&] { return plan_sweep_svg(sweep, sweep_plans(sweep, settings, built_in())); };
  const std::string once = draw();
  EXPECT_EQ(once, draw());
  for (const char* color :
       {colors::kParams, colors::kGrads, colors::kOptimizer, colors::kActivations}) {
    EXPECT_NE(once.find(color), std::string::npos);
  }
  EXPECT_EQ(once.find("nan"), std::string::npos);
  Svg odd(10, 10, "<&>");
  odd.box(0, 0, std::nan(""), 5, "#fff");
  odd.line(0, 0, 1e300, std::nan(""), "#fff");
  EXPECT_EQ(odd.finish().find("nan"), std::string::npos);
}

}  // namespace
}  // namespace tessera::planner
