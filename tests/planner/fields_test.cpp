#include "tessera/planner/fields.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tessera/core/errors.h"
#include "tests/planner/built_in.h"
#include "tests/text.h"

namespace tessera::planner {
namespace {

RunConfig settings(std::initializer_list<std::pair<const char*, const char*>> given) {
  RunConfig all = RunConfig::for_plan();
  for (const auto& [key, value] : given) all.set(key, value);
  return all;
}
RunConfig ask(std::initializer_list<std::pair<const char*, const char*>> given) {
  return resolve(look_up(settings(given), built_in()));
}
std::string refusal(std::initializer_list<std::pair<const char*, const char*>> given) {
  try {
    ask(given);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Fields, EverySettingHasADefault) {
  const RunConfig q = ask({});
  EXPECT_EQ(q.model.name, "gpt2-xl");
  EXPECT_EQ(q.hardware.name, "h100");
  EXPECT_EQ(q.world(), 1);
  EXPECT_EQ(q.layout.name, "bf16");
}

TEST(Fields, AcceptAnyOrderAndBothSpellings) {
  const RunConfig a = ask({{"layers", "10"}, {"model", "gpt2-xl"}, {"micro_batch", "2"}});
  const RunConfig b = ask({{"micro-batch", "2"}, {"model", "gpt2-xl"}, {"layers", "10"}});
  EXPECT_EQ(a.model.layers, 10);
  EXPECT_EQ(a.model.hidden, 1600);
  EXPECT_EQ(a.model.params(), b.model.params());
  EXPECT_EQ(a.micro_batch, 2);
}

// Both commands accept both flags.
TEST(Fields, BucketSizeHasTwoNames) {
  for (const auto& [key, value] : {std::pair{"bucket-size", "25MB"}, {"bucket-mb", "25"}}) {
    RunConfig settings = RunConfig::for_plan();
    settings.set(key, value);
    EXPECT_EQ(look_up(settings, built_in()).bucket_bytes, 25e6) << key;
    RunConfig run;
    run.set(key, value);
    EXPECT_EQ(run.bucket_bytes, 25'000'000) << key;
  }
}

TEST(Fields, Fp8NeedsHardwareLayoutAndTessera) {
  EXPECT_EQ(RunConfig().precision, Precision::layout);
  EXPECT_NO_THROW(ask({{"precision", "fp8"}, {"hardware", "h200"}}));
  EXPECT_TRUE(contains(refusal({{"precision", "fp8"}, {"hardware", "a100-80"}}),
                       "--precision: got fp8, but a100-80 has no fp8"));
  EXPECT_TRUE(contains(refusal({{"precision", "fp8"}, {"hardware", "h200"}, {"layout", "fp32"}}),
                       "--precision: got fp8 with --layout fp32"));
  EXPECT_TRUE(
      contains(refusal({{"precision", "fp8"}, {"hardware", "h200"}, {"software", "pytorch"}}),
               "--precision: got fp8, which is planned for Tessera only"));
}

TEST(Fields, MatmulPrecisionIsHighestUnlessGiven) {
  RunConfig run;
  EXPECT_EQ(run.matmul_precision, MatmulPrecision::highest);
  run.set("matmul-precision", "high");
  EXPECT_EQ(run.matmul_precision, MatmulPrecision::high);
  EXPECT_TRUE(contains(error_of([&] { run.set("matmul-precision", "medium"); }),
                       "must be one of highest, high"));
  EXPECT_FALSE(ask({{"layout", "fp32"}}).hardware.tf32);
  EXPECT_TRUE(ask({{"layout", "fp32"}, {"matmul-precision", "high"}}).hardware.tf32);
  EXPECT_FALSE(ask({{"matmul-precision", "high"}}).hardware.tf32);  // bf16 products
  for (const char* without : {"v100-32", "cpu"}) {
    EXPECT_TRUE(
        contains(refusal({{"layout", "fp32"}, {"matmul-precision", "high"}, {"hardware", without}}),
                 str("--matmul-precision: got high, but ", without, " has no TF32")))
        << without;
  }
}

TEST(Fields, AcceptSizesWithoutAModelName) {
  const RunConfig q = ask(
      {{"layers", "24"}, {"hidden", "1024"}, {"heads", "16"}, {"vocab", "51200"}, {"seq", "1024"}});
  EXPECT_EQ(q.model.params(), gpt_shape(24, 1024, 16, 51200, 1024).params());
  EXPECT_EQ(q.model.ffn, 4096);
}

TEST(Fields, SizesOverrideThoseOfANamedModel) {
  const RunConfig q = ask({{"model", "llama3-8b"}, {"hidden", "8192"}, {"heads", "64"}});
  EXPECT_TRUE(q.model.swiglu);
  EXPECT_EQ(q.model.ffn, 2 * 14336);
  EXPECT_EQ(q.model.kv_heads, 8);
  EXPECT_EQ(q.model.name, "");
  EXPECT_EQ(ask({{"model", "gpt2-xl"}, {"seq", "512"}}).model.name, "gpt2-xl");
  EXPECT_EQ(ask({{"model", "gpt2-124m"}, {"heads", "6"}}).model.kv_heads, 6);
}

TEST(Fields, AcceptOnlyTheNumberOfParameters) {
  const RunConfig q = ask({{"params", "13B"}, {"dp", "8"}});
  EXPECT_TRUE(q.state_only());
  EXPECT_EQ(q.params, 13e9);
  EXPECT_NE(refusal({{"params", "13B"}, {"model", "gpt2-xl"}}), "");
  EXPECT_NE(refusal({{"params", "13B"}, {"layers", "3"}}), "");
}

TEST(Fields, ErrorsNameTheFlag) {
  const std::vector<std::pair<std::pair<const char*, const char*>, const char*>> cases = {
      {{"model", "gpt2-x1"}, "did you mean gpt2-xl"},
      {{"hardware", "h10"}, "did you mean h100"},
      {{"schedule", "1f1"}, "did you mean 1f1b"},
      {{"attention", "fusd"}, "did you mean fused"},
      {{"recompute", "ful"}, "did you mean full"},
      {{"checkpoint-activations", "ful"}, "--recompute: got"},
      {{"layout", "bf61"}, "--layout"},
      {{"zero", "4"}, "--zero: got \"4\""},
      {{"zero", "-1"}, "--zero"},
      {{"dp", "0"}, "--dp"},
      {{"dp", "99999999999"}, "--dp"},
      {{"tp", "1.5"}, "--tp"},
      {{"layers", "-3"}, "--layers"},
      {{"seq", "nan"}, "--seq"},
      {{"params", "0"}, "--params"},
      {{"params", "1e30"}, "--params"},
      {{"micro-batch", ""}, "--micro-batch"},
      {{"overlap-grad-reduce", "maybe"}, "--overlap-grad-reduce"},
      {{"bucket-size", "25M"}, "--bucket-size"},
      {{"watts", "-5"}, "--watts"},
  };
  for (const auto& [given, expected] : cases) {
    EXPECT_NE(refusal({given}).find(expected), std::string::npos)
        << given.first << " " << given.second << ": " << refusal({given});
  }
  EXPECT_EQ(ask({{"bucket-size", "25MB"}, {"bucket-mb", "30"}}).bucket_bytes, 30'000'000);
  EXPECT_EQ(ask({{"bucket-size", "25MB"}, {"bucket-mb", "0"}}).bucket_bytes, 25'000'000);
  try {
    RunConfig().set("mikro-batch", "1");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean micro-batch"), std::string::npos);
  }
}

// Any number in any field gives a resolved run or a UsageError.
TEST(Fields, ExtremeNumbersAreAcceptedOrRefused) {
  const std::vector<std::string> numbers = {"-1",
                                            "0",
                                            "1",
                                            "2",
                                            "3",
                                            "7",
                                            "64",
                                            "65536",
                                            "1e6",
                                            "2147483647",
                                            "2147483648",
                                            "1e12",
                                            "9223372036854775807",
                                            "9223372036854775808",
                                            "1e18",
                                            "1e19",
                                            "1e400",
                                            "0.5",
                                            "",
                                            "true"};
  for (const Field& field : fields(Command::plan)) {
    for (const Field& other : fields(Command::plan)) {
      for (const std::string& number : numbers) {
        RunConfig all = RunConfig::for_plan();
        try {
          all.set(other.name, "64");
          all.set(field.name, number);
          const RunConfig q = resolve(look_up(all, built_in()));
          EXPECT_GE(q.world(), 1);
          EXPECT_GE(q.micros(), 1);
          EXPECT_EQ(q.global_batch, q.micro_batch * q.dp() * q.micros());
        } catch (const UsageError&) {
        }
      }
    }
  }
}

TEST(Fields, ErrorsNameMissingValuesAndValuesBelowOne) {
  const std::string below = refusal({{"dp", "-3"}});
  EXPECT_NE(below.find("must be at least 1"), std::string::npos) << below;
  const std::string none = refusal({{"dp", "x"}});
  EXPECT_NE(none.find("must be an integer"), std::string::npos) << none;
  const std::string beyond = refusal({{"params", "1e30"}});
  EXPECT_NE(beyond.find("at least 1 and below 9.2e18"), std::string::npos) << beyond;
}

// If 0 is a value, runs and plans accept the same numbers. Otherwise 0 means "choose" in a run, and
// a plan refuses it.
TEST(Fields, ZeroIsAValueOnlyForSomeSettings) {
  std::set<std::string> bounded;
  for (const Field& field : fields(Command::plan)) {
    if (field.kind != Field::Kind::integer) continue;
    for (const char* text : {"0", "-1", "1", "70000"}) {
      RunConfig run, plan = RunConfig::for_plan();
      const std::string why = error_of([&] { set(run, field, text); });
      const std::string also = error_of([&] { set(plan, field, text); });
      if (field.bounded_in_plans) {
        EXPECT_EQ(why, also) << field.name << " " << text;
      } else if (std::string(text) == "0") {
        EXPECT_NE(also.find("must be at least 1"), std::string::npos) << field.name << also;
      }
    }
    if (field.bounded_in_plans) bounded.insert(field.name);
  }
  EXPECT_EQ(bounded, (std::set<std::string>{"dense-layers", "lora-rank", "zero"}));
  EXPECT_EQ(ask({{"zero", "0"}, {"lora-rank", "0"}}).zero, 0);
}

TEST(Fields, ErrorsNameTheirField) {
  const std::vector<std::pair<const char*, const char*>> wrong = {{"zero", "4"},
                                                                  {"model", "gpt2-x1"},
                                                                  {"hardware", "h10"},
                                                                  {"tp", "2"},
                                                                  {"schedule", "1f1"},
                                                                  {"layout", "bf61"},
                                                                  {"seq", "nan"},
                                                                  {"nodes", "3"},
                                                                  {"params", "1e30"},
                                                                  {"axis-order", "dp"},
                                                                  {"grad-accum", "0"},
                                                                  {"lora-targets", "x"},
                                                                  {"between-bandwidth", "0GB/s"}};
  for (const auto& [key, value] : wrong) {
    try {
      ask({{"lora-rank", "4"}, {"gpus", "8"}, {key, value}});
      ADD_FAILURE() << key << " " << value;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.field(), key) << error.what();
    }
  }
}

TEST(Fields, EveryRowHasAUniqueNameHelpAndAType) {
  for (const Command command : {Command::train, Command::plan}) {
    std::set<std::string> names;
    for (const Field& field : fields(command)) {
      EXPECT_TRUE(names.insert(field.name).second) << field.name;
      EXPECT_FALSE(field.help.empty()) << field.name;
      EXPECT_FALSE(field.group.empty()) << field.name;
      EXPECT_FALSE(field.type_name().empty()) << field.name;
    }
    for (const Axis axis : kAllAxes) EXPECT_TRUE(names.count(axis_flag(axis).substr(2)));
  }
}

// Shared settings mean the same in runs and plans, except that a run writes 0 for numbers that a
// plan may omit.
TEST(Fields, RunsAndPlansParseValuesAlike) {
  for (const Field& field : fields(Command::plan)) {
    if (!field.is(Command::train)) continue;
    for (const char* text : {"1", "2", "3", "2,000", "1e3", "true", "false", "0.5", "none", "work",
                             "bf16", "1f1b", "alias", "last", "x", "-1", "", "nan", "13B"}) {
      RunConfig run, plan = RunConfig::for_plan();
      const auto take = [&](RunConfig& to) { return error_of([&] { set(to, field, text); }); };
      const std::string why = take(run), also = take(plan);
      const bool beyond = why.find(" to ") != std::string::npos || field.free_in_plans;
      if (!beyond) {
        EXPECT_EQ(why.empty(), also.empty()) << field.name << " " << text;
      }
      if (why.empty() && also.empty()) {
        EXPECT_EQ(get(run, field), get(plan, field)) << field.name << " " << text;
      }
      if (!why.empty()) {
        EXPECT_EQ(why.rfind("--" + field.name + ": ", 0), 0u) << why;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::planner
