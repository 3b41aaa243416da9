// Mixtures of experts in plans: parameters, memory by ep, the exchange of rows, imbalance and
// capacity, searches and advice.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/planner/expert_costs.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/json.h"
#include "tessera/planner/limits.h"
#include "tessera/planner/places.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/search.h"
#include "tessera/planner/software.h"
#include "tessera/planner/stages.h"
#include "tessera/planner/step_time.h"
#include "tessera/planner/ways.h"
#include "tests/planner/advised_case.h"
#include "tests/text.h"

namespace tessera::planner {
namespace {

RunConfig expert_settings(const std::string& flags) {
  return look_up(with_flags(RunConfig::for_plan(), flags), built_in());
}
RunConfig expert_run(const std::string& flags) { return resolve(expert_settings(flags)); }
Plan expert_plan(const std::string& flags) { return plan_numbers(expert_run(flags)); }
SearchResult expert_search(const std::string& flags) {
  return search(search_request(with_flags(RunConfig::for_plan(), flags), built_in()));
}
bool noted(const Plan& plan, const std::string& text) {
  return std::any_of(plan.notes.begin(), plan.notes.end(),
                     [&](const std::string& note) { return contains(note, text); });
}

TEST(ExpertCosts, CountsActiveAndTotalParameters) {
  const Plan plan = expert_plan("--model mixtral-8x7b --dp 8 --ep 8 --zero 1");
  const ExpertCosts costs = expert_costs(plan);
  // The published sizes: 46.7 billion, of which a token uses 12.9 billion.
  EXPECT_EQ(costs.parameters, 46'702'792'704.0);
  EXPECT_EQ(costs.active, 12'879'925'248.0);
  EXPECT_EQ(costs.in_experts, 32.0 * 8 * 3 * 4096 * 14336);
  EXPECT_EQ(costs.active - (costs.parameters - costs.in_experts), costs.in_experts / 4);
  EXPECT_EQ(costs.on_a_rank, 1);
  const auto json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json["active_parameters"], 12'879'925'248);
  EXPECT_EQ(json["experts"]["parameters_in_experts"], 45'097'156'608);
  EXPECT_EQ(json["question"]["ep"], 8);
}

// Written out for a layer, apart from the planner's programs.
TEST(ExpertCosts, ExchangeEqualsTheFormula) {
  for (const char* mesh : {"--dp 8 --ep 2", "--dp 8 --ep 8", "--dp 16 --ep 16",
                           "--dp 4 --cp 2 --ep 8", "--dp 8 --ep 4 --tp 2 --pp 2 --grad-accum 4"}) {
    for (const char* recompute : {"none", "full"}) {
      const Plan plan =
          expert_plan(std::string("--model mixtral-8x7b --experts 16 --hardware h100 ") +
                      "--zero 1 --micro-batch 2 --recompute " + recompute + " " + mesh);
      const RunConfig& q = plan.question;
      const double part = 1 - 1.0 / q.ep(), passes = q.recompute == Recompute::full ? 3 : 2;
      const double routed = 2.0 * 2 * static_cast<double>(q.rank_tokens());  // micro-batch, k
      const double rows = part * routed * 4096 * 2, weights = part * routed * 4;
      const double layers = static_cast<double>(q.model.layers) / q.pp();
      const double each = passes * (2 * rows + weights);
      const double times = layers * static_cast<double>(q.micros());
      EXPECT_NEAR(plan.traffic.sent[Axis::ep], times * each, 1e-6 * times * each) << mesh;
      const ExpertExchange exchange = expert_costs(plan).exchange;
      EXPECT_EQ(exchange.bytes, plan.traffic.sent[Axis::ep]);
      EXPECT_EQ(exchange.calls, times * passes * 3) << mesh;
      EXPECT_EQ(exchange.seconds, plan.time.comm[Axis::ep]);
      EXPECT_EQ(exchange.crosses_hosts, q.ep() * q.tp() > 8) << mesh;
      EXPECT_GT(exchange.seconds, 0);
    }
  }
}

TEST(ExpertCosts, TimeOfTheExchangeFollowsFromItsLinks) {
  for (const char* mesh : {"--dp 8 --ep 8", "--dp 16 --ep 16", "--dp 16 --ep 4"}) {
    RunConfig q =
        expert_run(std::string("--model mixtral-8x7b --experts 16 --hardware h100 ") + mesh);
    q.hardware.launch = q.hardware.kernel_start = q.hardware.launch_skew = 0;
    const Places on = places(q);
    const double routed = 2 * static_cast<double>(q.rank_tokens());
    const auto seconds = [&](double bytes) {
      return on.seconds(Collective::all_to_all, bytes, on.along[Axis::ep]);
    };
    const double layer = 4 * seconds(routed * 4096 * 2) + 2 * seconds(routed * 4);
    EXPECT_NEAR(step_time(q).comm[Axis::ep], 32 * layer, 1e-9 * 32 * layer) << mesh;
  }
}

TEST(ExpertCosts, MemoryByEpEqualsThatOfPlans) {
  for (const char* software : {"megatron", "tessera"}) {
    const std::string flags =
        std::string("--model mixtral-8x7b --hardware h100 --dp 16 --zero 1 ") + "--software " +
        software;
    const std::vector<ExpertMemory> rows = expert_memory(expert_plan(flags + " --ep 4"));
    ASSERT_EQ(rows.size(), 4U);
    double before = 0;
    for (const ExpertMemory& row : rows) {
      const Plan plan = expert_plan(flags + " --ep " + std::to_string(row.ep));
      EXPECT_EQ(row.needed, plan.needed()) << row.ep;
      EXPECT_EQ(row.fits, plan.fits) << row.ep;
      EXPECT_EQ(row.experts * row.ep, 8) << row.ep;
      // 2 + 2 bytes per parameter on the rank, and 12 sharded over the ranks with the same experts.
      const double own = 32.0 * 3 * 4096 * 14336 * static_cast<double>(row.experts);
      EXPECT_NEAR(row.state, own * (4 + 12.0 * row.ep / 16), 1) << row.ep;
      if (before > 0) {
        EXPECT_LT(row.state, before) << row.ep;
      }
      before = row.state;
    }
  }
}

TEST(ExpertCosts, ImbalanceRaisesTimeAndMemory) {
  for (const char* software : {"megatron", "tessera"}) {
    const std::string flags =
        std::string("--model mixtral-8x7b --hardware h100 --dp 8 --zero 1 --software ") + software;
    double time = 0, compute = 0, memory = 0, exchange = 0;
    for (const char* imbalance : {"1", "1.25", "2", "8"}) {
      const Plan plan = expert_plan(flags + " --ep 8 --expert-imbalance " + imbalance);
      EXPECT_GT(plan.time.step(), 1.02 * time) << imbalance;
      EXPECT_GT(plan.time.compute, compute) << imbalance;
      EXPECT_GT(plan.time.comm[Axis::ep], exchange) << imbalance;
      EXPECT_GT(plan.memory.activations, memory) << imbalance;
      EXPECT_EQ(expert_costs(plan).busiest, std::stod(imbalance) * 8192) << imbalance;
      time = plan.time.step(), compute = plan.time.compute;
      memory = plan.memory.activations, exchange = plan.time.comm[Axis::ep];
    }
    // With the capacity the busiest rank computes no more than that.
    const Plan capped = expert_plan(flags + " --ep 8 --expert-imbalance 2 --expert-capacity 1.25");
    const Plan same = expert_plan(flags + " --ep 8 --expert-imbalance 1.25");
    EXPECT_EQ(capped.time.compute, same.time.compute);
    EXPECT_EQ(capped.memory.activations, same.memory.activations);
    EXPECT_EQ(expert_costs(capped).dropped, 1 - 1.25 / 2);
  }
}

// One rank with all experts computes the rows that it routes, whatever the imbalance.
TEST(ExpertCosts, ImbalanceIsAtMostEp) {
  const std::string flags = "--model mixtral-8x7b --hardware h100 --dp 8 --zero 3";
  EXPECT_EQ(expert_plan(flags + " --expert-imbalance 1.5").time.step(),
            expert_plan(flags).time.step());
  EXPECT_EQ(expert_plan(flags + " --ep 2 --expert-imbalance 3").time.step(),
            expert_plan(flags + " --ep 2 --expert-imbalance 2").time.step());
  EXPECT_TRUE(noted(make_plan(expert_settings(flags + " --expert-imbalance 1.5")),
                    "--expert-imbalance 1.5 has no effect with ep 1"));
  EXPECT_TRUE(noted(make_plan(expert_settings(flags + " --ep 2 --expert-imbalance 3")),
                    "--expert-imbalance 3 counts as 2"));
  EXPECT_THROW(expert_run("--model gpt2-xl --expert-imbalance 1.5"), UsageError);
}

TEST(ExpertNotes, ReportUnusualSettings) {
  const Plan across =
      make_plan(expert_settings("--model qwen3-30b-a3b --hardware h100 --dp 32 --ep 32"));
  EXPECT_TRUE(noted(across, "ep 32 goes across hosts of 8 GPUs"));
  EXPECT_TRUE(noted(across, "where --ep 8 stays"));
  EXPECT_FALSE(
      noted(make_plan(expert_settings("--model qwen3-30b-a3b --hardware h100 --dp 32 --ep 8")),
            "goes across hosts"));
  EXPECT_TRUE(noted(make_plan(expert_settings("--model mixtral-8x7b --experts 6 --dp 4 --ep 4")),
                    "6 experts do not divide evenly over ep 4: a rank has 1 or 2"));
  EXPECT_TRUE(
      noted(make_plan(expert_settings("--model mixtral-8x7b --dp 8 --ep 8 --expert-imbalance 2 "
                                      "--expert-capacity 1.5")),
            "drops 25% of it"));
  EXPECT_THROW(megatron_report(expert_run("--model mixtral-8x7b")), UsageError);
}

TEST(ExpertSearch, FindsTheSameAsAnExhaustiveSearch) {
  const std::string flags =
      "--model mixtral-8x7b --layers 8 --hardware h100 --gpus 8 --gpus-per-node 4 --global-batch "
      "16 "
      "--recompute none --no-sequence-parallel --schedule 1f1b --expert-imbalance 1.05";
  double best = 0;
  int planned = 0, divided = 0;
  for (const int tp : {1, 2, 4, 8}) {
    for (const int pp : {1, 2, 4, 8}) {
      for (const int ep : {1, 2, 4, 8}) {
        for (const int micro : {1, 2, 4, 8, 16}) {
          for (const int zero : {0, 1, 3}) {
            RunConfig q = expert_settings(flags);
            q.axes.set(Axis::tp, tp), q.axes.set(Axis::pp, pp), q.axes.set(Axis::ep, ep);
            q.micro_batch = micro, q.zero = zero;
            try {
              q = resolve(q);
            } catch (const UsageError&) {
              continue;
            }
            std::vector<int> replicas = q.zero > 0 ? replica_counts(q) : std::vector<int>();
            replicas.push_back(1);
            for (const int count : replicas) {
              RunConfig r = q;
              r.axes.set_given(Axis::dp_replicate, count);
              if (!r.axes.experts_divide() || memory_of(r).total() > usable_memory(r.hardware))
                continue;
              for (const char* order :
                   {"tp,dp,pp", "tp,pp,dp", "dp,tp,pp", "dp,pp,tp", "pp,tp,dp", "pp,dp,tp"}) {
                r.order = order;
                const double rate =
                    static_cast<double>(r.global_batch * r.seq) / step_time(r).step();
                ++planned;
                divided += ep > 1 ? 1 : 0;
                best = std::max(best, rate);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(divided, planned / 4);
  const SearchResult result = expert_search(flags);
  ASSERT_FALSE(result.best.empty());
  EXPECT_NEAR(result.best.front().tokens_per_s / best, 1, 0.001);
  EXPECT_GT(result.best.front().question.ep(), 1);
}

TEST(ExpertSearch, KeepsAGivenEpAndCountsTheRest) {
  const SearchResult result = expert_search(
      "--model mixtral-8x7b --hardware h100 --gpus 64 --global-batch 256 --ep 4 --zero 1");
  ASSERT_FALSE(result.best.empty());
  for (const Plan& plan : result.best) {
    EXPECT_EQ(plan.question.ep(), 4);
    EXPECT_EQ(plan.question.world(), 64);
    EXPECT_EQ(plan.question.shards() % 4, 0);
  }
  EXPECT_GT(result.ruled_out.at("ep does not divide dp · cp"), 0);
}

TEST(ExpertSearch, ChoosesALargeEpForManyExperts) {
  for (const char* model : {"mixtral-8x7b", "qwen3-30b-a3b"}) {
    const SearchResult result = expert_search(std::string("--hardware h100 --gpus 64 --zero 1 ") +
                                              "--global-batch 512 --model " + model);
    ASSERT_FALSE(result.best.empty()) << model;
    for (const Plan& plan : result.best) {
      const RunConfig& q = plan.question;
      EXPECT_EQ(q.model.experts.count % q.ep(), 0) << model;
      EXPECT_TRUE(q.axes.experts_divide()) << model;
    }
    EXPECT_GT(result.best.front().question.ep(), 1) << model;
  }
}

TEST(ExpertSearch, ModelsWithoutExpertsHaveNone) {
  const SearchResult result =
      expert_search("--model llama3-8b --hardware h100 --gpus 16 --global-batch 64");
  ASSERT_FALSE(result.best.empty());
  for (const Plan& plan : result.best) EXPECT_EQ(plan.question.ep(), 1);
  const auto json = nlohmann::json::parse(to_json(result));
  for (const char* key : {"experts", "active_parameters", "tokens_per_expert"}) {
    EXPECT_FALSE(json["best"][0].contains(key)) << key;
  }
  for (const Way& way : compare_ways(expert_settings("--model llama3-8b --gpus 8")).ways) {
    EXPECT_FALSE(contains(way.name, "ep")) << way.name;
  }
  bool compared = false;
  for (const Way& way : compare_ways(expert_settings("--model mixtral-8x7b --gpus 8")).ways) {
    compared = compared || way.name == "dp 8, ep 8";
    EXPECT_TRUE(way.refused.empty() || !contains(way.name, "ep")) << way.refused;
  }
  EXPECT_TRUE(compared);
}

TEST(ExpertLimits, KeepEpIfItDividesTheRanks) {
  const RunConfig q = expert_run("--model mixtral-8x7b --hardware h200 --dp 8 --ep 8 --zero 1");
  bool some = false;
  for (const BatchLimit& limit : largest_batches(q).rows) {
    some = some || limit.micro_batch > 0;
    EXPECT_TRUE(limit.dp >= 8 || limit.micro_batch == 0) << limit.dp;  // 8 experts need 8 ranks
  }
  EXPECT_TRUE(some);
  EXPECT_FALSE(largest_models(q).rows.empty());
}

// One copy of the state has all experts, whatever the number of ranks that share them.
TEST(ExpertStages, CountCopiesOfTheWholeModel) {
  const auto stages = [](const char* ep) {
    return compare_stages(
        expert_run(std::string("--model mixtral-8x7b --hardware h100 --dp 16 --ep ") + ep));
  };
  EXPECT_NEAR(stages("1").front().one_copy, 46'702'792'704.0 * 16, 1);
  EXPECT_EQ(stages("8").front().one_copy, stages("1").front().one_copy);
  EXPECT_NEAR(stages("1").front().copies(), 16, 1e-9);
  // Experts have two copies, the rest 16.
  const double experts = 45'097'156'608.0 / 46'702'792'704.0;
  EXPECT_NEAR(stages("8").front().copies(), 2 * experts + 16 * (1 - experts), 1e-9);
}

// Each change of ep keeps the devices, and says so if the ranks are on several hosts.
TEST(ExpertAdvice, AchievesThePromisedGains) {
  int advised = 0, fitting = 0, across = 0;
  for (const char* model : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-moe-16b"}) {
    for (const char* mesh :
         {"--dp 8", "--dp 16 --ep 2", "--dp 32 --ep 32", "--dp 64", "--dp 16 --tp 2"}) {
      for (const char* rest : {"--zero 0", "--zero 1 --grad-accum 4", "--zero 3 --micro-batch 2"}) {
        AdvisedCase one;
        one.words = std::string("--hardware h100 --expert-imbalance 1.2 --model ") + model + " " +
                    mesh + " " + rest;
        one.settings = with_flags(RunConfig::for_plan(), one.words);
        if (one.settings.ep() > find_model_shape(model).experts.count) continue;
        const Plan plan = plan_of(one);
        for (const Advice& advice : plan.advice) {
          if (advice.family != "ep") continue;
          const Plan then = followed(one, advice);
          EXPECT_TRUE(then.fits) << one.words << " | " << advice.text;
          EXPECT_EQ(then.question.world(), plan.question.world()) << one.words;
          EXPECT_NEAR(plan.time.step() - then.time.step(), advice.seconds, 1e-9) << one.words;
          const bool leaves = places(then.question).along[Axis::ep].nodes() > 1;
          EXPECT_EQ(contains(advice.text, "goes across hosts"), leaves) << advice.text;
          ++advised;
          across += leaves ? 1 : 0;
        }
        if (!plan.fits && contains(plan.remedy, "--ep ")) ++fitting;
      }
    }
  }
  EXPECT_GT(advised, 10);
  EXPECT_GT(fitting, 0);
}

}  // namespace
}  // namespace tessera::planner
