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

RunConfig question_of(const Given& given) {
  RunConfig all = RunConfig::for_plan();
  for (const auto& [key, value] : given) all.set(key, value);
  return look_up(all, built_in());
}

// Advice and notes.
std::string all_advice(const Plan& plan) {
  std::string text;
  for (const Advice& advice : plan.advice) text += advice.text + "\n";
  for (const std::string& line : plan.notes) text += line + "\n";
  return text;
}
bool advises(const Plan& plan, const std::string& words) {
  return all_advice(plan).find(words) != std::string::npos;
}

TEST(Plan, AddsUpForEveryModelOnEveryDevice) {
  for (const ModelShape& model : model_shapes()) {
    for (const Hardware& hardware : built_in().all()) {
      RunConfig q = RunConfig::for_plan();
      q.model = model;
      q.hardware = hardware;
      q.axes.set_dp(2), q.axes.set(Axis::pp, 2), q.grad_accum = 4, q.zero = 1;
      q.vocab_multiple = 1;  // without padding rows
      if (!hardware.bf16) q.layout = parse_state_layout("fp16");
      const Plan plan = make_plan(q);
      EXPECT_EQ(plan.parameters, static_cast<double>(model.params()));
      EXPECT_DOUBLE_EQ(plan.in_blocks + plan.in_embeddings, plan.parameters);
      const Memory& m = plan.memory;
      const double rows =
          m.params + m.grads + m.optimizer + m.activations + m.buffers + m.temporary;
      EXPECT_DOUBLE_EQ(m.total(), rows - m.not_at_once);
      EXPECT_GE(m.not_at_once, 0);
      EXPECT_LE(m.not_at_once, m.temporary);
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
TEST(Plan, FlopsMatchTheMegatronPaper) {
  RunConfig q = RunConfig::for_plan();
  q.model = gpt_shape(24, 2304, 24, 51200, 2048);
  q.grad_accum = 512;
  q = resolve(q);
  const double l = 24, h = 2304, s = 2048, v = 51200, b = 512;
  const double layers = 96 * b * s * l * h * h;
  const double want = layers * (0.75 * (1 + s / (6 * h)) + v / (16 * l * h));
  EXPECT_NEAR(model_flops(q) / want, 1, 1e-12);
}

// Products of the layers take half as long; tensors are rounded in passes of their own, whose cost
// does not depend on the batch for weights.
TEST(Plan, Fp8ShortensStepsOfLargeBatches) {
  const auto plan_of = [](const char* batch, const char* precision) {
    return make_plan(question_of({{"model", "gpt2-xl"},
                                  {"hardware", "h200"},
                                  {"micro-batch", batch},
                                  {"precision", precision}}));
  };
  const double wide = plan_of("15", "layout").time.step(), fp8 = plan_of("15", "fp8").time.step();
  EXPECT_LT(fp8, wide / 1.2);
  EXPECT_GT(fp8, wide / 1.6);
  // Measured: docs/gpu.md.
  EXPECT_NEAR(fp8, 221.9e-3, 0.1 * 221.9e-3);
  EXPECT_GT(plan_of("1", "fp8").time.step(), 0.95 * plan_of("1", "layout").time.step());
  EXPECT_EQ(plan_of("15", "fp8").memory.total(), plan_of("15", "layout").memory.total());
}

// Products of fp32 tensors run at the TF32 peak; attention and the update do not.
TEST(Plan, HighMatmulPrecisionShortensStepsInFp32) {
  const auto step = [](const char* layout, const char* precision) {
    return make_plan(question_of({{"model", "gpt2-124m"},
                                  {"hardware", "h200"},
                                  {"micro-batch", "4"},
                                  {"layout", layout},
                                  {"matmul-precision", precision}}))
        .time.step();
  };
  const double highest = step("fp32", "highest"), high = step("fp32", "high");
  EXPECT_LT(high, highest / 2);
  EXPECT_GT(high, highest * 67 / 494);
  EXPECT_GT(high, step("bf16", "highest"));
  EXPECT_EQ(step("bf16", "high"), step("bf16", "highest"));
}

TEST(Plan, ComputesPriceAndEnergy) {
  RunConfig q = question_of({{"dp", "4"}, {"price-per-hour", "2"}, {"watts", "700"}});
  const Plan plan = make_plan(q);
  EXPECT_DOUBLE_EQ(plan.price, 4 * 2 * plan.time.step() / 3600);
  EXPECT_DOUBLE_EQ(plan.joules, 4 * 700 * plan.time.step());
}

TEST(Plan, JsonHasAllKeys) {
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

TEST(Plan, HasNoTimeIfOnlyTheSizeIsKnown) {
  const auto json = nlohmann::json::parse(
      to_json(make_plan(question_of({{"params", "13B"}, {"layout", "bf16-nomaster"}}))));
  EXPECT_EQ(json["memory"]["total"], 156'000'000'000);
  EXPECT_TRUE(json["time"].is_null());
  EXPECT_FALSE(json["fits"].get<bool>());
}

TEST(Plan, JsonOfSettingsEqualsJsonOfThePlan) {
  const std::string want = to_json(make_plan(question_of({{"dp", "8"}, {"zero", "2"}})));
  EXPECT_EQ(plan_json(R"({"dp": 8, "zero": 2})"), want);
  RunConfig settings = RunConfig::for_plan();
  settings.set("dp", "8");
  settings.set("zero", "2");
  EXPECT_EQ(plan_json(settings), want);
  EXPECT_THROW(plan_json(R"({"dpp": 8})"), UsageError);
  EXPECT_THROW(plan_json("8"), UsageError);
}

// Huge numbers are refused or answered, and never overflow.
TEST(Plan, HugeTesseraRunsDoNotOverflow) {
  for (const char* line :
       {R"({"software":"tessera","micro_batch":1000000000,"seq":100000000})",
        R"({"software":"tessera","layers":100000,"hidden":1000000,"heads":1000})",
        R"({"software":"tessera","pp":48,"grad_accum":65536,"schedule":"gpipe","seq":10000000})",
        R"({"software":"tessera","dp":10000000})", R"({"software":"tessera","layout":"2,0,12"})",
        R"({"hardware":"cpu","model":"gpt2-124m","tp":4,"dp":2,"zero":3})"}) {
    const auto json = nlohmann::json::parse(answer_line(RunConfig::for_plan(), built_in(), line));
    if (json.contains("error")) {
      EXPECT_NE(json["error"].get<std::string>().find("--"), std::string::npos) << json["error"];
      continue;
    }
    for (const auto& [key, value] : json["memory"].items()) {
      EXPECT_GE(value.get<double>(), 0) << line << key;
    }
  }
}

// If only the size is known, unknown values are not 0, and the fit names the assumed model.
TEST(Plan, NamesTheAssumedModelIfOnlyTheSizeIsKnown) {
  const Given given = {{"params", "13B"}, {"dp", "8"}, {"zero", "2"}, {"layout", "bf16-nomaster"}};
  const Plan plan = make_plan(question_of(given));
  const auto json = nlohmann::json::parse(to_json(plan));
  for (const char* key : {"activations", "buffers", "temporary"}) {
    EXPECT_TRUE(json["memory"][key].is_null()) << key;
    EXPECT_GT(json["assumed"]["memory"][key].get<double>(), 0) << key;
  }
  EXPECT_EQ(json["memory"]["total"], 42'250'000'000);
  ASSERT_TRUE(plan.assumed);
  EXPECT_NEAR(static_cast<double>(plan.assumed->model.params()) / 13e9, 1, 0.1);
  EXPECT_DOUBLE_EQ(plan.margin, usable_memory(plan.question.hardware) - plan.needed());
  EXPECT_DOUBLE_EQ(plan.needed() - plan.memory.total(), plan.assumed->memory.activations +
                                                            plan.assumed->memory.buffers +
                                                            plan.assumed->memory.temporary);
  // The estimate equals the plan of the named model.
  RunConfig same = plan.question;
  same.params = 0;
  same.model = plan.assumed->model;
  same.seq = plan.assumed->seq;
  EXPECT_DOUBLE_EQ(memory_of(resolve(same)).activations, plan.assumed->memory.activations);
  // The state fits, but not with the activations.
  const Plan close = make_plan(question_of({{"params", "4.7B"}}));
  EXPECT_LT(close.memory.total(), usable_memory(close.question.hardware));
  EXPECT_FALSE(close.fits);
  EXPECT_NE(close.remedy.find("--recompute full fits"), std::string::npos) << close.remedy;
}

TEST(Plan, FitIsUnknownForSizesWithoutATypicalModel) {
  const Plan plan = make_plan(question_of({{"params", "1M"}}));
  EXPECT_FALSE(plan.assumed);
  EXPECT_FALSE(plan.fit_known);
  EXPECT_TRUE(nlohmann::json::parse(to_json(plan))["fits"].is_null());
  // If the state alone does not fit, the fit is known.
  const Plan huge = make_plan(question_of({{"params", "900000000000000000"}}));
  EXPECT_TRUE(huge.fit_known);
  EXPECT_FALSE(huge.fits);
}

TEST(Plan, AssumesAModelNearEverySize) {
  for (double size = 1e8; size < 2e12; size *= 1.17) {
    for (const int tp : {1, 2, 8}) {
      RunConfig q = RunConfig::for_plan();
      q.params = size;
      q.axes.set(Axis::tp, tp);
      const auto assumed = assumed_for(resolve(q));
      ASSERT_TRUE(assumed) << size << " tp " << tp;
      EXPECT_NEAR(static_cast<double>(assumed->model.params()) / size, 1, 0.1);
      EXPECT_EQ(assumed->model.heads % tp, 0);
    }
  }
  // Close to the named models.
  for (const char* name : {"gpt3-1.3b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b"}) {
    const ModelShape known = find_model_shape(name);
    RunConfig q = RunConfig::for_plan();
    q.params = known.params();
    const auto assumed = assumed_for(resolve(q));
    ASSERT_TRUE(assumed);
    q = RunConfig::for_plan();
    q.model = known;
    const double want = memory_of(resolve(q)).activations;
    EXPECT_NEAR(assumed->memory.activations / want, 1, 0.35) << name;
  }
}

TEST(Advice, NamesTheSmallestChangeThatFits) {
  // Each size needs one more ZeRO stage than the one before it.
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
  EXPECT_TRUE(advises(batch, "--recompute full fits")) << all_advice(batch);
}

// A proposed stage fits when it is applied.
TEST(Advice, ProposedStagesFit) {
  RunConfig q = question_of({{"model", "gpt3-6.7b"}, {"dp", "8"}});
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

TEST(Advice, NotesUnusualButValidSettings) {
  const std::vector<std::pair<Given, const char*>> cases = {
      {{{"pp", "8"}, {"grad-accum", "4"}}, "fewer than stages"},
      {{{"pp", "8"}, {"grad-accum", "32"}}, "17.9%"},
      {{{"pp", "5"}, {"grad-accum", "32"}}, "do not divide"},
      {{{"model", "gpt3-1.3b"}, {"tp", "16"}}, "goes across hosts"},
      {{{"dp", "64"}, {"zero", "3"}, {"hardware", "a100-80"}}, "--keep-params saves"},
      {{{"dp", "8"}, {"zero", "3"}}, "stage 3 is not needed: --zero 0 fits"},
      {{{"dp", "8"}, {"zero", "2"}, {"grad-accum", "8"}}, "shards only the optimizer state"},
      {{{"dp", "64"},
        {"zero", "2"},
        {"grad-accum", "8"},
        {"hardware", "a100-80"},
        {"software", "tessera"}},
       "--zero 0 saves"},
      {{{"dp", "8"}, {"zero", "2"}, {"grad-accum", "8"}, {"grad-reduce", "last"}},
       "keeps whole gradients"},
      {{{"dp", "8"}, {"software", "pytorch"}}, "with --zero 1 a rank updates 1/8"},
      {{{"pp", "4"}, {"grad-accum", "8"}, {"schedule", "zb-h1"}}, "has no schedule zb-h1"},
      {{{"zero", "2"}}, "has no effect with dp 1"},
      {{{"model", "gpt3-1.3b"},
        {"dp", "32"},
        {"zero", "1"},
        {"overlap-grad-reduce", "false"},
        {"hardware", "a100-80"}},
       "--overlap-grad-reduce saves"},
      {{{"checkpoint-activations", "full"}}, "--recompute none saves"},
      {{{"matmul-precision", "high"}},
       "--matmul-precision high has no effect: products of --layout bf16"},
      {{{"checkpoint-activations", "selective"}}, "saves nothing"},
      {{{"sequence-parallel", "true"}}, "has no effect with tp 1"},
      {{{"model", "gpt3-6.7b"}, {"pp", "4"}, {"grad-accum", "64"}, {"schedule", "gpipe"}},
       "--schedule interleaved --chunks 8 fits"},
      {{{"model", "gpt2-124m"}, {"tp", "4"}}, "--pad-vocab 128 makes it 50688"},
      {{{"model", "gpt2-124m"}, {"seq", "4096"}}, "extended to 4096"},
      {{{"params", "200B"}, {"dp", "64"}, {"zero", "3"}}, "above 100B"},
      {{{"layout", "bf16-nomaster"}}, "stochastic rounding"},
      {{{"nodes", "4"}, {"dp", "20"}}, "12 of 32 GPUs"},
  };
  for (const auto& [given, expected] : cases) {
    const Plan plan = make_plan(question_of(given));
    EXPECT_TRUE(advises(plan, expected)) << expected << "\n" << all_advice(plan);
  }
}

TEST(Advice, IsEmptyForOrdinaryPlans) {
  for (const char* hardware : {"h100", "b200", "a100-80"}) {
    const Plan plan = make_plan(question_of({{"dp", "8"}, {"hardware", hardware}}));
    EXPECT_TRUE(plan.advice.empty()) << hardware << ": " << all_advice(plan);
  }
  const Plan plan = make_plan(question_of({{"model", "gpt2-xl"}, {"dp", "8"}, {"zero", "2"}}));
  EXPECT_TRUE(plan.advice.empty()) << all_advice(plan);
  // Except for the note on Megatron-LM's meaning of that stage.
  ASSERT_EQ(plan.notes.size(), 1U);
  EXPECT_NE(plan.notes[0].find("15.4 GB as --zero 1"), std::string::npos) << plan.notes[0];
}

// RunConfig that are already in use are not proposed.
TEST(Advice, DoesNotProposeCurrentSettings) {
  const auto says = [](const Given& given, const std::string& words) {
    const Plan plan = make_plan(question_of(given));
    return (all_advice(plan) + plan.remedy).find(words) != std::string::npos;
  };
  const Given tp = {{"model", "gpt3-6.7b"}, {"tp", "8"}, {"hardware", "a100-80"}};
  ASSERT_EQ(make_plan(question_of(tp)).bound, Bound::network);
  EXPECT_FALSE(says(tp, "inside a host")) << make_plan(question_of(tp)).remedy;
  const Given across = {{"model", "gpt3-6.7b"}, {"tp", "16"}, {"hardware", "a100-80"}};
  EXPECT_TRUE(says(across, "inside a host"));
  // tp already fills the host: only pp is left, or sharding over more ranks.
  const Given full = {{"model", "gpt3-175b"}, {"tp", "8"}, {"dp", "2"}, {"zero", "3"}};
  ASSERT_FALSE(make_plan(question_of(full)).fits);
  EXPECT_FALSE(says(full, "--tp up to"));
  EXPECT_TRUE(says(full, "--pp across hosts, or raise --dp"));
  // One layer per stage: no more chunks.
  EXPECT_FALSE(says({{"pp", "48"}, {"grad-accum", "64"}}, "more --chunks"));
  EXPECT_TRUE(says({{"pp", "24"}, {"grad-accum", "64"}}, "more --chunks"));
  // More GPUs do not help an idle pipeline.
  const Given idle = {{"pp", "8"}, {"grad-accum", "2"}};
  EXPECT_TRUE(says(idle, "more micro-batches"));
  EXPECT_FALSE(says(idle, "more GPUs"));
  // Groups of 3 do not divide hosts of 8.
  const Given straddles = {
      {"layers", "12"}, {"hidden", "768"}, {"heads", "12"}, {"tp", "3"}, {"dp", "8"}};
  EXPECT_TRUE(says(straddles, "span hosts"));
  EXPECT_FALSE(says({{"model", "gpt2-124m"}, {"tp", "4"}, {"dp", "8"}}, "across hosts"));
}

// Sharding state does not help if activations alone do not fit.
TEST(Advice, DoesNotProposeShardingIfActivationsDoNotFit) {
  const Plan plan = make_plan(question_of({{"model", "gpt2-xl"}, {"seq", "100000"}}));
  const Memory& m = plan.memory;
  ASSERT_GT(m.total() - m.params - m.grads - m.optimizer, usable_memory(plan.question.hardware));
  EXPECT_NE(plan.remedy.find("a shorter --seq"), std::string::npos) << plan.remedy;
  EXPECT_EQ(plan.remedy.find("--micro-batch"), std::string::npos) << plan.remedy;
}

// Without a step time, the bound is unknown.
TEST(Advice, BoundIsUnknownIfOnlyTheSizeIsKnown) {
  const Plan plan = make_plan(question_of({{"params", "1B"}}));
  EXPECT_TRUE(nlohmann::json::parse(to_json(plan))["bound"].is_null());
  EXPECT_NE(plan.remedy.find("--model"), std::string::npos) << plan.remedy;
  const Plan large = make_plan(question_of({{"params", "100B"}}));
  EXPECT_EQ(nlohmann::json::parse(to_json(large))["bound"], "memory");
}

// Applying the remedy for a mesh bound by tp makes it fit and wait less.
TEST(Advice, ProposesLessTensorParallelismForNetworkBoundPlans) {
  const Given given = {{"model", "gpt3-1.3b"},
                       {"tp", "8"},
                       {"grad-accum", "1"},
                       {"micro-batch", "8"},
                       {"hardware", "a100-80"}};
  const Plan plan = make_plan(question_of(given));
  ASSERT_EQ(plan.bound, Bound::network) << plan.time.comm[Axis::tp] / plan.time.step();
  ASSERT_NE(plan.remedy.find("--tp 4 --dp 2 --micro-batch 4 saves"), std::string::npos)
      << plan.remedy;
  const Plan half = make_plan(question_of({{"model", "gpt3-1.3b"},
                                           {"tp", "4"},
                                           {"dp", "2"},
                                           {"micro-batch", "4"},
                                           {"hardware", "a100-80"}}));
  EXPECT_TRUE(half.fits);
  EXPECT_LT(half.time.comm[Axis::tp] / half.time.step(),
            plan.time.comm[Axis::tp] / plan.time.step());
}

TEST(Megatron, ReportMatchesItsLogToTheDigit) {
  const MegatronReport report = megatron_report(resolve(question_of({{"model", "gpt2-xl"}})));
  char text[80];
  std::snprintf(text, sizeof(text), "%.2f %.2f %.4f %.2f", report.in_blocks / 1e9,
                report.in_embeddings / 1e9, report.most_loaded_shard / 1e9, report.mib());
  EXPECT_STREQ(text, "1.47 0.08 1.5554 26699.47");
  EXPECT_EQ(report.total(), 1'555'356'800);
  EXPECT_EQ(report.total(), 1'555'356'800);
  const MegatronReport sharded =
      megatron_report(resolve(question_of({{"model", "gpt2-xl"}, {"dp", "4"}, {"zero", "1"}})));
  EXPECT_DOUBLE_EQ(report.bytes - sharded.bytes, 9 * report.total());
  EXPECT_THROW(megatron_report(resolve(question_of({{"params", "1B"}}))), UsageError);
}

}  // namespace
}  // namespace tessera::planner
