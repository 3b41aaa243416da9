#include "tessera/planner/search.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/limits.h"
#include "tessera/planner/places.h"
#include "tessera/planner/software.h"
#include "tessera/planner/step_time.h"
#include "tessera/planner/ways.h"
#include "tessera/schedule/schedule.h"
#include "tests/planner/built_in.h"
#include "tests/sanitized.h"

namespace tessera::planner {
namespace {

SearchRequest search_for(std::initializer_list<std::pair<const char*, const char*>> given) {
  RunConfig all = RunConfig::for_plan();
  for (const auto& [key, value] : given) all.set(key, value);
  return search_request(all, built_in());
}

// Compares with an exhaustive search over every combination, including orders of the axes, except
// those that resolve() refuses or that do not fit.
TEST(Search, FindsTheSameAsAnExhaustiveSearch) {
  const int gpus = tessera::testing::kSanitized ? 8 : 16;
  const SearchRequest question = search_for({{"model", "gpt3-2.7b"},
                                             {"gpus", gpus == 8 ? "8" : "16"},
                                             {"gpus-per-node", "4"},
                                             {"global-batch", "32"},
                                             {"hardware", "a100-40"}});
  double best = 0;
  for (int tp = 1; tp <= gpus; ++tp) {
    for (int pp = 1; tp * pp <= gpus; ++pp) {
      for (const std::string& schedule : schedule::names()) {
        for (int chunks = 0; chunks <= 16; ++chunks) {
          for (int micro = 1; micro <= 32; ++micro) {
            for (int rest = 0; rest < 16; ++rest) {
              RunConfig q = question.base;
              q.axes.set(Axis::tp, tp), q.axes.set(Axis::pp, pp),
                  q.schedule = *find_named<ScheduleChoice>(schedule), q.chunks = chunks;
              q.micro_batch = micro, q.zero = rest % 4;
              q.recompute = (rest & 4) != 0 ? Recompute::full : Recompute::none;
              q.sequence_parallel = (rest & 8) != 0;
              if (gpus % (tp * pp) != 0 || 32 % micro != 0) continue;
              // Tries two chunks, and every number that divides the layers evenly.
              if (pp == 1 && (schedule != "1f1b" || chunks > 1)) continue;  // no pipeline
              if (chunks > 2 && q.model.layers % (chunks * pp) != 0) continue;
              try {
                q = resolve(q);
              } catch (const UsageError&) {
                continue;
              }
              if (lack_of(q) != Lack::none) continue;
              if (memory_of(q).total() > usable_memory(q.hardware)) continue;
              const double tokens = static_cast<double>(q.global_batch * q.seq);
              std::vector<int> replicas = q.zero > 0 ? replica_counts(q) : std::vector<int>();
              replicas.push_back(1);
              for (const int count : replicas) {
                q.axes.set_given(Axis::dp_replicate, count);
                if (memory_of(q).total() > usable_memory(q.hardware)) continue;
                for (const char* order :
                     {"tp,dp,pp", "tp,pp,dp", "dp,tp,pp", "dp,pp,tp", "pp,tp,dp", "pp,dp,tp"}) {
                  q.order = order;
                  best = std::max(best, tokens / step_time(q).step());
                }
              }
            }
          }
        }
      }
    }
  }
  const SearchResult result = search(question);
  ASSERT_FALSE(result.best.empty());
  // Another order than the default must be clearly faster.
  EXPECT_NEAR(result.best.front().tokens_per_s / best, 1, 0.001);
}

TEST(Search, RanksResultsAndCountsRejections) {
  std::int64_t done = 0, total = 0;
  const SearchResult result = search(search_for({{"model", "gpt3-175b"},
                                                 {"gpus", "256"},
                                                 {"hardware", "a100-80"},
                                                 {"global-batch", "1536"}}),
                                     [&](std::int64_t now, std::int64_t all) {
                                       EXPECT_EQ(now, ++done);
                                       total = all;
                                     });
  EXPECT_EQ(done, total);
  ASSERT_EQ(result.best.size(), 10U);
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const Plan& plan = result.best[i];
    EXPECT_TRUE(plan.fits);
    EXPECT_EQ(plan.question.world(), 256);
    EXPECT_EQ(plan.question.global_batch, 1536);
    if (i > 0) {
      EXPECT_LE(plan.tokens_per_s, result.best[i - 1].tokens_per_s);
    }
  }
  EXPECT_EQ(result.tried, result.fitting + result.ruled_out.at("does not fit"));
  EXPECT_GT(result.ruled_out.at("tp does not divide the heads"), 0);
  EXPECT_GT(result.ruled_out.at("fewer layers than pp · chunks"), 0);
}

TEST(Search, KeepsFixedSettings) {
  const SearchResult result = search(search_for({{"model", "gpt2-xl"},
                                                 {"gpus", "32"},
                                                 {"global-batch", "64"},
                                                 {"pp", "4"},
                                                 {"zero", "1"},
                                                 {"schedule", "interleaved"},
                                                 {"chunks", "3"},
                                                 {"micro-batch", "1"},
                                                 {"checkpoint-activations", "selective"}}));
  ASSERT_FALSE(result.best.empty());
  for (const Plan& plan : result.best) {
    const RunConfig& q = plan.question;
    EXPECT_EQ(q.pp(), 4);
    EXPECT_EQ(q.zero, 1);
    EXPECT_EQ(q.chunks, 3);
    EXPECT_EQ(q.micro_batch, 1);
    EXPECT_EQ(q.recompute, Recompute::selective);
  }
}

// If stages communicate more than replicas, neighbors along pp should share a node. A search finds
// this order unless the order is fixed.
TEST(Search, TriesOrdersOfTheAxes) {
  const auto best = [](const char* order) {
    RunConfig settings = RunConfig::for_plan();
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, const char*>>{{"model", "gpt3-175b"},
                                                                    {"gpus", "256"},
                                                                    {"hardware", "a100-80"},
                                                                    {"global-batch", "512"},
                                                                    {"tp", "2"},
                                                                    {"pp", "16"}}) {
      settings.set(key, value);
    }
    if (*order != 0) settings.set("order", order);
    const SearchResult result = search(search_request(settings, built_in()));
    EXPECT_FALSE(result.best.empty());
    return result.best.front();
  };
  const Plan usual = best("tp,dp,pp"), other = best("tp,pp,dp"), any = best("");
  EXPECT_EQ(usual.question.order, "tp,dp,pp");
  EXPECT_EQ(other.question.order, "tp,pp,dp");
  EXPECT_NE(usual.time.step(), other.time.step());
  EXPECT_GE(any.tokens_per_s, 0.998 * std::max(usual.tokens_per_s, other.tokens_per_s));
}

TEST(Search, ReturnsNoResultIfNothingFits) {
  const SearchResult result = search(search_for({{"model", "llama3.1-405b"}, {"gpus", "2"}}));
  EXPECT_TRUE(result.best.empty());
  EXPECT_EQ(result.fitting, 0);
}

TEST(Search, ReturnsTheClosestPlanAndTheNearestThatFitsIfNothingFits) {
  const SearchResult result = search(search_for({{"model", "llama2-70b"}, {"gpus", "4"}}));
  ASSERT_TRUE(result.best.empty());
  ASSERT_TRUE(result.closest.has_value());
  EXPECT_EQ(result.closest->question.world(), 4);
  EXPECT_FALSE(result.closest->fits);
  EXPECT_FALSE(result.closest->remedy.empty());
  ASSERT_TRUE(result.nearest_fit.has_value());
  const Plan& nearest = *result.nearest_fit;
  EXPECT_TRUE(nearest.fits);
  EXPECT_EQ(nearest.question.global_batch, result.closest->question.global_batch);
  // Nothing fits on half as many devices.
  const auto half = std::to_string(nearest.question.world() / 2);
  EXPECT_TRUE(search(search_for({{"model", "llama2-70b"}, {"gpus", half.c_str()}})).best.empty());
  EXPECT_FALSE(search(search_for({{"model", "llama2-7b"}, {"gpus", "8"}})).closest.has_value());
}

TEST(Search, RefusesMoreConfigurationsThanTheLimit) {
  SearchRequest ask = search_for(
      {{"model", "gpt2-xl"}, {"gpus", "12"}, {"hardware", "h100"}, {"global-batch", "24"}});
  const SearchResult all = search(ask);
  ask.most = all.tried;
  EXPECT_EQ(search(ask).tried, all.tried);
  for (const std::int64_t most : {std::int64_t{1}, all.tried / 2, all.tried - 1}) {
    ask.most = most;
    try {
      search(ask);
      FAIL() << most;
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find("--gpus 12: with a global batch of 24"), 0U) << text;
      EXPECT_NE(text.find(str("more than ", most, " ways")), std::string::npos) << text;
    }
  }
}

TEST(Search, RefusesImpossibleQuestions) {
  EXPECT_THROW(search(search_for({{"params", "13B"}})), UsageError);
  EXPECT_THROW(search_for({{"grad-accum", "4"}}), UsageError);
}

// The same rule as for advice: one step is within the interval of the other. Tessera on a GPU takes
// at most the predicted time, so only the slower one's interval contains the faster one.
TEST(Search, StepsWithinTheIntervalsAreEquallyGood) {
  const auto plan_of = [](double step, double low, double high) {
    Plan plan;
    plan.time.compute = step;
    plan.interval = {low * step, high * step, ""};
    return plan;
  };
  EXPECT_TRUE(as_good_as(plan_of(1.08, 0.9, 1.0), plan_of(1, 0.9, 1.0)));
  EXPECT_TRUE(as_good_as(plan_of(1.08, 1.0, 1.1), plan_of(1, 1.0, 1.1)));
  EXPECT_FALSE(as_good_as(plan_of(1.2, 0.9, 1.1), plan_of(1, 0.9, 1.1)));
  const SearchResult found = search(search_for(
      {{"model", "gpt2-xl"}, {"gpus", "8"}, {"hardware", "h200"}, {"global-batch", "64"}}));
  ASSERT_GE(found.best.size(), 2U);
  EXPECT_TRUE(as_good_as(found.best[1], found.best[0]));
}

// One layer that does not fit on a single rank.
TEST(Ways, WarnThatTpSpansHosts) {
  RunConfig settings = RunConfig::for_plan();
  for (const auto& [key, value] : {std::pair{"layers", "1"},
                                   {"hidden", "61440"},
                                   {"heads", "480"},
                                   {"hardware", "a100-80"},
                                   {"gpus", "16"}}) {
    settings.set(key, value);
  }
  const std::string text = compare_ways(look_up(settings, built_in())).conclusion;
  EXPECT_NE(text.find("tp 16 (tp goes across hosts)"), std::string::npos) << text;
}

// Nodes of A100s send 4 × 200 Gb/s, a quarter of that between switches, so gathers inside a node
// are faster.
TEST(Search, ProposesReplicasForSlowLinksBetweenNodes) {
  const auto best = [](const char* replicas) {
    SearchRequest question = search_for({{"model", "llama3-8b"},
                                         {"hardware", "a100-80"},
                                         {"gpus", "64"},
                                         {"zero", "3"},
                                         {"global-batch", "64"},
                                         {"tp", "1"},
                                         {"pp", "1"},
                                         {"dp-replicate", replicas ? replicas : "1"}});
    question.fixed.axes[Axis::dp_replicate] = replicas != nullptr;
    return search(question).best.front();
  };
  const Plan hybrid = best(nullptr);
  EXPECT_EQ(hybrid.question.replicas(), 8);
  EXPECT_EQ(hybrid.question.dp(), 64);
  const Plan plain = best("1");
  EXPECT_EQ(plain.question.replicas(), 1);
  EXPECT_LT(hybrid.time.step(), 0.7 * plain.time.step());
  EXPECT_GT(hybrid.memory.total(), plain.memory.total());
  EXPECT_EQ(best("2").question.replicas(), 2);
  EXPECT_THROW(search(search_for(
                   {{"model", "gpt2-xl"}, {"gpus", "8"}, {"zero", "0"}, {"dp-replicate", "2"}})),
               UsageError);
}

}  // namespace
}  // namespace tessera::planner
