// Checks that JSON answers are valid, complete and agree with the values they were made from.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "tessera/core/errors.h"
#include "tessera/planner/json.h"
#include "tessera/planner/stages.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

// Draws random settings, some of them invalid.
class Asker {
 public:
  std::optional<RunConfig> next() {
    RunConfig settings = RunConfig::for_plan();
    const auto set = [&](const char* key, std::vector<const char*> values) {
      const std::size_t at = random_() % (values.size() + 1);
      if (at < values.size()) settings.set(key, values[at]);
    };
    switch (random_() % 4) {
      case 0: set("params", {"7B", "175B", "1000000000000000000", "123456789"}); break;
      case 1:
        settings.set("layers", "12"), settings.set("hidden", "768"), settings.set("heads", "12");
        set("vocab", {"50257", "50304"});
        break;
      default: set("model", {"gpt2-xl", "llama2-7b", "llama2-70b", "gpt3-175b", "gpt-tiny"});
    }
    set("dp", {"1", "2", "8", "64", "1024"});
    set("tp", {"1", "2", "8"});
    set("pp", {"1", "2", "4"});
    set("zero", {"0", "1", "2", "3"});
    set("seq", {"512", "2048", "32768"});
    set("micro-batch", {"1", "2", "16"});
    set("grad-accum", {"1", "4", "8"});
    set("hardware", {"h100", "a100-80gb", "v100-32gb", "local-cpu"});
    set("layout", {"fp32", "bf16-fp32grad", "bf16-nomaster"});
    set("software", {"megatron", "tessera", "pytorch"});
    set("recompute", {"none", "selective", "full"});
    set("attention", {"fused", "unfused"});
    set("schedule", {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"});
    set("grad-compression", {"none", "bf16", "fp16"});
    set("grad-reduce", {"each", "last"});
    set("price-per-hour", {"0", "2.5", "7"});
    set("watts", {"0", "700"});
    try {
      return resolve(look_up(settings, built_in()));
    } catch (const UsageError&) {
      return std::nullopt;
    }
  }

 private:
  std::mt19937 random_{20261117};
};

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

void expect_number(const Json& json, double value) {
  EXPECT_NEAR(json.get<double>(), value, 1e-9 * std::abs(value) + 0.5);
}

TEST(PlanJson, HasTheValuesOfThePlan) {
  Asker asker;
  int asked = 0, sized = 0, pipelined = 0, advised = 0, too_large = 0;
  std::set<std::string> with_shape, by_size;  // keys of all plans
  while (asked < 300) {
    const std::optional<RunConfig> question = asker.next();
    if (!question) continue;
    ++asked;
    const Plan plan = advised_plan(*question);
    const Json json = Json::parse(to_json(plan));
    ASSERT_EQ(json.dump(), to_json(plan));  // one line, and nothing else
    const bool known = !question->state_only();
    std::set<std::string> keys = keys_of(json);
    for (const char* some : {"memory_by_pipeline_rank", "price_per_step", "joules_per_step"}) {
      keys.erase(some);
    }
    std::set<std::string>& expected = known ? with_shape : by_size;
    if (expected.empty()) expected = keys;
    EXPECT_EQ(keys, expected);
    expect_number(json["memory"]["total"], plan.memory.total());
    EXPECT_EQ(json["memory"]["activations"].is_null(), !known);
    EXPECT_EQ(json["memory"].contains("not_at_once"), known);
    expect_number(json["traffic"]["total"], plan.traffic.total());
    EXPECT_EQ(json["traffic"]["rows"].size(), plan.traffic.rows.size());
    EXPECT_EQ(json["time"].is_null(), !known);
    EXPECT_EQ(known ? json["time"]["step"].get<double>() : 0, known ? plan.time.step() : 0);
    EXPECT_EQ(json["fits"].is_null(), !plan.fit_known);
    EXPECT_EQ(json["bound"].is_null(), !known && plan.fits);
    EXPECT_EQ(json["notes"].size(), plan.notes.size());
    ASSERT_EQ(json["changes"].size(), plan.advice.size());
    for (std::size_t i = 0; i < plan.advice.size(); ++i) {
      EXPECT_EQ(json["advice"][i], plan.advice[i].text);
      EXPECT_EQ(json["changes"][i]["flags"], plan.advice[i].flags);
    }
    EXPECT_EQ(json["question"]["zero"], question->zero);
    // A plan without advice has the same members otherwise.
    const std::set<std::string> fewer = keys_of(tree_of(plan, false));
    EXPECT_EQ(fewer.size() + 4, keys_of(json).size());
    sized += known ? 1 : 0;
    pipelined += question->pp() > 1 ? 1 : 0;
    advised += plan.advice.empty() ? 0 : 1;
    too_large += plan.fits ? 0 : 1;
  }
  for (const int kind : {sized, pipelined, advised, too_large}) {
    EXPECT_GT(kind, 25);
    EXPECT_LT(kind, asked - 25);
  }
}

TEST(PlanJson, StagesHaveTheNumbersOfTheirPlans) {
  Asker asker;
  for (int asked = 0; asked < 50;) {
    const std::optional<RunConfig> question = asker.next();
    if (!question) continue;
    ++asked;
    const auto stages = compare_stages(*question);
    const Json json = Json::parse(to_json(stages));
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const Json plan = tree_of(stages[i].plan), &stage = json["stages"][i];
      for (const char* key : {"memory", "fits"}) EXPECT_EQ(stage[key], plan[key]) << key;
      EXPECT_EQ(stage["time"].is_null(), plan["time"].is_null());
      if (!plan["time"].is_null()) {
        EXPECT_EQ(stage["time"]["step"], plan["time"]["step"]);
      }
    }
  }
}

TEST(PlanJson, LimitsAndSearchesListTheirRows) {
  Asker asker;
  for (int asked = 0; asked < 20;) {
    const std::optional<RunConfig> question = asker.next();
    if (!question || question->dp() > 64) continue;
    ++asked;
    const ModelLimits models = largest_models(*question);
    const Json json = Json::parse(to_json(models));
    expect_number(json["memory"], models.asked.memory);
    EXPECT_EQ(json["rows"].size(), models.rows.size());
    if (question->state_only()) continue;
    const BatchLimits batches = largest_batches(*question);
    EXPECT_EQ(Json::parse(to_json(batches))["global_batch"], batches.asked.global_batch);
  }
  SearchResult found;
  found.tried = 3;
  found.ruled_out = {{"needs \"quotes\"\n", 2}, {"memory", 1}};
  while (found.best.size() < 5) {
    if (const auto question = asker.next()) found.best.push_back(advised_plan(*question));
  }
  const Json json = Json::parse(to_json(found));
  EXPECT_EQ(json["best"].size(), 5U);
  EXPECT_EQ(json["best"][0]["as_good_as_the_best"], true);
  EXPECT_EQ(json["ruled_out"]["needs \"quotes\"\n"], 2);
  EXPECT_FALSE(json.contains("closest"));
}

// Unusual numbers and strings.
TEST(PlanJson, PrintsAnyValueOnOneLine) {
  EXPECT_EQ(one_line(whole_json(8.9e18)), "8900000000000000000");
  EXPECT_EQ(one_line(whole_json(1e20)), "1e+20");
  EXPECT_EQ(one_line(whole_json(-0.4)), "0");
  EXPECT_EQ(one_line(whole_json(std::numeric_limits<double>::infinity())), "null");
  EXPECT_EQ(one_line(Json("cut \xc2\n")), "\"cut \xef\xbf\xbd\\n\"");
}

}  // namespace
}  // namespace tessera::planner
