#include "tessera/planner/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/planner/json.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

using Given = std::vector<std::pair<std::string, std::string>>;

Question question_of(const Given& given) {
  Settings all;
  for (const auto& [key, value] : given) all.set(key, value);
  return all.question(built_in());
}

bool advises(const Plan& plan, const std::string& words) {
  for (const std::string& line : plan.advice) {
    if (line.find(words) != std::string::npos) return true;
  }
  return false;
}
std::string all_advice(const Plan& plan) {
  std::string text;
  for (const std::string& line : plan.advice) text += line + "\n";
  return text;
}

TEST(Plan, AddsUpForEveryModelOnEveryDevice) {
  for (const ModelShape& model : model_shapes()) {
    for (const Hardware& hardware : built_in().all()) {
      Question q;
      q.model = model;
      q.hardware = hardware;
      q.dp = 2, q.pp = 2, q.grad_accum = 4, q.zero = 1;
      const Plan plan = make_plan(q);
      EXPECT_EQ(plan.parameters, static_cast<double>(model.params()));
      EXPECT_DOUBLE_EQ(plan.in_blocks + plan.in_embeddings, plan.parameters);
      const Memory& m = plan.memory;
      EXPECT_DOUBLE_EQ(m.total(),
                       m.params + m.grads + m.optimizer + m.activations + m.buffers + m.temporary);
      EXPECT_EQ(plan.fits, m.total() <= usable_memory(hardware));
      EXPECT_GT(plan.time.step(), 0);
      EXPECT_DOUBLE_EQ(plan.tokens_per_s * plan.time.step(),
                       8.0 * static_cast<double>(plan.question.seq));
      EXPECT_GT(plan.mfu, 0) << model.name << hardware.name;
      EXPECT_LT(plan.mfu, 1) << model.name << hardware.name;
      EXPECT_FALSE(plan.remedy.empty());
    }
  }
}

// F = 96·B·s·L·h²·(1 + s/6h + V/16Lh), where the layers run forward twice and the head once.
TEST(Plan, FlopsAreThoseOfTheMegatronPaper) {
  Question q;
  q.model = gpt_shape(24, 2304, 24, 51200, 2048);
  q.grad_accum = 512;
  q = settle(q);
  const double l = 24, h = 2304, s = 2048, v = 51200, b = 512;
  const double layers = 96 * b * s * l * h * h;
  const double want = layers * (0.75 * (1 + s / (6 * h)) + v / (16 * l * h));
  EXPECT_NEAR(model_flops(q) / want, 1, 1e-12);
}

TEST(Plan, PriceAndEnergy) {
  Question q = question_of({{"dp", "4"}, {"price-per-hour", "2"}, {"watts", "700"}});
  const Plan plan = make_plan(q);
  EXPECT_DOUBLE_EQ(plan.price, 4 * 2 * plan.time.step() / 3600);
  EXPECT_DOUBLE_EQ(plan.joules, 4 * 700 * plan.time.step());
}

TEST(Plan, JsonHasTheKeys) {
  const auto json =
      nlohmann::json::parse(to_json(make_plan(question_of({{"dp", "8"}, {"zero", "2"}}))));
  EXPECT_EQ(json["parameters"], 1'557'611'200);
  double total = 0;
  for (const char* key : {"params", "grads", "optimizer", "activations", "buffers", "temporary"}) {
    ASSERT_TRUE(json["memory"].contains(key)) << key;
    total += json["memory"][key].get<double>();
  }
  EXPECT_NEAR(json["memory"]["total"].get<double>(), total, 8);
  for (const char* key : {"dp", "tp", "pp", "total"}) ASSERT_TRUE(json["traffic"].contains(key));
  for (const char* key : {"compute", "comm_exposed", "bubble", "optimizer", "step"}) {
    ASSERT_TRUE(json["time"][key].is_number()) << key;
  }
  EXPECT_TRUE(json["tokens_per_s"].is_number());
  EXPECT_TRUE(json["mfu"].is_number());
  EXPECT_TRUE(json["fits"].is_boolean());
  EXPECT_TRUE(json["advice"].is_array());
}

TEST(Plan, OfASizeAloneHasNoTime) {
  const auto json = nlohmann::json::parse(
      to_json(make_plan(question_of({{"params", "13B"}, {"layout", "bf16-nomaster"}}))));
  EXPECT_EQ(json["memory"]["total"], 156'000'000'000);
  EXPECT_TRUE(json["time"].is_null());
  EXPECT_FALSE(json["fits"].get<bool>());
}

TEST(Advice, SaysWhatWouldFit) {
  // Only the optimizer is too much; gradients too; parameters too.
  const std::vector<std::pair<const char*, const char*>> sizes = {
      {"7B", "--zero 1 fits"}, {"20B", "--zero 2 fits"}, {"38B", "--zero 3 fits"}};
  for (const auto& [params, expected] : sizes) {
    const Plan plan = make_plan(question_of({{"params", params}, {"dp", "64"}}));
    EXPECT_FALSE(plan.fits);
    EXPECT_EQ(plan.bound, Bound::memory);
    EXPECT_TRUE(advises(plan, expected)) << all_advice(plan);
    EXPECT_NE(plan.remedy.find(expected), std::string::npos) << plan.remedy;
  }
  const Plan batch = make_plan(question_of({{"model", "gpt2-xl"}, {"micro-batch", "32"}}));
  EXPECT_TRUE(advises(batch, "--checkpoint-activations full fits")) << all_advice(batch);
}

// What the advice proposes does fit when it is done.
TEST(Advice, ItsNumbersHold) {
  Question q = question_of({{"model", "gpt3-6.7b"}, {"dp", "8"}});
  EXPECT_FALSE(make_plan(q).fits);
  for (int stage = 1; stage <= 3; ++stage) {
    q.zero = stage;
    const bool proposed = make_plan(question_of({{"model", "gpt3-6.7b"}, {"dp", "8"}}))
                              .remedy.find("--zero " + std::to_string(stage)) == 0;
    if (proposed) {
      EXPECT_TRUE(make_plan(q).fits);
    }
  }
}

TEST(Advice, OfTheOddButPossible) {
  const std::vector<std::pair<Given, const char*>> cases = {
      {{{"pp", "8"}, {"grad-accum", "4"}}, "fewer than stages"},
      {{{"pp", "8"}, {"grad-accum", "32"}}, "17.9%"},
      {{{"pp", "5"}, {"grad-accum", "32"}}, "do not divide"},
      {{{"model", "gpt3-1.3b"}, {"tp", "16"}}, "goes across hosts"},
      {{{"dp", "8"}, {"zero", "3"}}, "stage 3 sends"},
      {{{"dp", "8"}, {"zero", "2"}, {"grad-accum", "8"}}, "with 8 micro-batches stage 2 sends"},
      {{{"dp", "8"}, {"zero", "2"}, {"grad-accum", "8"}, {"grad-reduce", "last"}},
       "keeps whole gradients"},
      {{{"dp", "8"}}, "stage 1 would free"},
      {{{"zero", "2"}}, "not at all"},
      {{{"dp", "8"}, {"overlap-grad-reduce", "false"}}, "serialise the step"},
      {{{"checkpoint-activations", "full"}}, "not needed"},
      {{{"checkpoint-activations", "selective"}}, "saves nothing"},
      {{{"sequence-parallel", "true"}}, "nothing is cut"},
      {{{"pp", "4"}, {"grad-accum", "64"}, {"schedule", "gpipe"}}, "1f1b has the same bubble"},
      {{{"model", "gpt2-124m"}, {"tp", "4"}}, "--pad-vocab makes it 50688"},
      {{{"model", "gpt2-124m"}, {"seq", "4096"}}, "grown to 4096"},
      {{{"params", "200B"}, {"dp", "64"}, {"zero", "3"}}, "from 100B on"},
      {{{"layout", "bf16-nomaster"}}, "stochastic rounding"},
      {{{"nodes", "4"}, {"dp", "20"}}, "12 of 32 GPUs"},
  };
  for (const auto& [given, expected] : cases) {
    const Plan plan = make_plan(question_of(given));
    EXPECT_TRUE(advises(plan, expected)) << expected << "\n" << all_advice(plan);
  }
}

TEST(Advice, IsSilentWhereNothingIsOdd) {
  const Plan plan = make_plan(question_of({{"model", "gpt2-xl"}, {"dp", "8"}, {"zero", "1"}}));
  EXPECT_TRUE(plan.advice.empty()) << all_advice(plan);
}

TEST(Megatron, ReportToTheDigit) {
  const MegatronReport report = megatron_report(settle(question_of({{"model", "gpt2-xl"}})));
  char text[80];
  std::snprintf(text, sizeof(text), "%.2f %.2f %.4f %.2f", report.in_blocks / 1e9,
                report.in_embeddings / 1e9, report.most_loaded_shard / 1e9, report.mib());
  EXPECT_STREQ(text, "1.47 0.08 1.5554 26699.47");
  EXPECT_EQ(report.total(), 1'555'356'800);
  EXPECT_EQ(report.total(), static_cast<double>(megatron_params(find_model_shape("gpt2-xl"), 1)));
  const MegatronReport sharded =
      megatron_report(settle(question_of({{"model", "gpt2-xl"}, {"dp", "4"}, {"zero", "1"}})));
  EXPECT_DOUBLE_EQ(report.bytes - sharded.bytes, 9 * report.total());
  EXPECT_THROW(megatron_report(settle(question_of({{"params", "1B"}}))), UsageError);
}

}  // namespace
}  // namespace tessera::planner
