#include "tessera/planner/settings.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tessera/core/errors.h"
#include "tests/planner/built_in.h"
#include "tests/text.h"

namespace tessera::planner {
namespace {

Settings settings(std::initializer_list<std::pair<const char*, const char*>> given) {
  Settings all;
  for (const auto& [key, value] : given) all.set(key, value);
  return all;
}
Question ask(std::initializer_list<std::pair<const char*, const char*>> given) {
  return settle(settings(given).question(built_in()));
}
std::string refusal(std::initializer_list<std::pair<const char*, const char*>> given) {
  try {
    ask(given);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Settings, EveryOneHasADefault) {
  const Question q = ask({});
  EXPECT_EQ(q.model.name, "gpt2-xl");
  EXPECT_EQ(q.hardware.name, "h100");
  EXPECT_EQ(q.world(), 1);
  EXPECT_EQ(q.layout.name, "bf16");
}

TEST(Settings, AnyOrderAndEitherSpelling) {
  const Question a = ask({{"layers", "10"}, {"model", "gpt2-xl"}, {"micro_batch", "2"}});
  const Question b = ask({{"micro-batch", "2"}, {"model", "gpt2-xl"}, {"layers", "10"}});
  EXPECT_EQ(a.model.layers, 10);
  EXPECT_EQ(a.model.hidden, 1600);
  EXPECT_EQ(a.model.params(), b.model.params());
  EXPECT_EQ(a.micro_batch, 2);
}

// Both commands take both flags.
TEST(Settings, TheSizeOfABucketHasTwoNames) {
  for (const auto& [key, value] : {std::pair{"bucket-size", "25MB"}, {"bucket-mb", "25"}}) {
    Settings settings;
    settings.set(key, value);
    EXPECT_EQ(settings.question(built_in()).bucket_bytes, 25e6) << key;
    RunSettings run;
    for (const Field& field : fields(Command::train)) {
      if (field.name == key) set(run, field, value);
    }
    EXPECT_EQ(bucket_bytes_of(run), 25'000'000) << key;
  }
}

TEST(Settings, SizesAlone) {
  const Question q = ask(
      {{"layers", "24"}, {"hidden", "1024"}, {"heads", "16"}, {"vocab", "51200"}, {"seq", "1024"}});
  EXPECT_EQ(q.model.params(), gpt_shape(24, 1024, 16, 51200, 1024).params());
  EXPECT_EQ(q.model.ffn, 4096);
}

TEST(Settings, SizesOverANamedModel) {
  const Question q = ask({{"model", "llama3-8b"}, {"hidden", "8192"}, {"heads", "64"}});
  EXPECT_TRUE(q.model.swiglu);
  EXPECT_EQ(q.model.ffn, 2 * 14336);
  EXPECT_EQ(q.model.kv_heads, 8);
  EXPECT_EQ(q.model.name, "");
  EXPECT_EQ(ask({{"model", "gpt2-xl"}, {"seq", "512"}}).model.name, "gpt2-xl");
  EXPECT_EQ(ask({{"model", "gpt2-124m"}, {"heads", "6"}}).model.kv_heads, 6);
}

TEST(Settings, ASizeAlone) {
  const Question q = ask({{"params", "13B"}, {"dp", "8"}});
  EXPECT_TRUE(q.state_only());
  EXPECT_EQ(q.params, 13e9);
  EXPECT_NE(refusal({{"params", "13B"}, {"model", "gpt2-xl"}}), "");
  EXPECT_NE(refusal({{"params", "13B"}, {"layers", "3"}}), "");
}

TEST(Settings, WhatIsWrongIsNamed) {
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
  EXPECT_NE(refusal({{"bucket-size", "25MB"}, {"bucket-mb", "25"}}).find("wanted one of them"),
            std::string::npos);
  try {
    Settings().set("mikro-batch", "1");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean micro-batch"), std::string::npos);
  }
}

// Whatever number stands in whatever field, the answer is a question or a UsageError.
TEST(Settings, NoNumberBreaksAnything) {
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
        Settings all;
        all.set(other.name, "64");
        all.set(field.name, number);
        try {
          const Question q = settle(all.question(built_in()));
          EXPECT_GE(q.world(), 1);
          EXPECT_GE(q.micros(), 1);
          EXPECT_EQ(q.global_batch, q.micro_batch * q.dp() * q.micros());
        } catch (const UsageError&) {
        }
      }
    }
  }
}

TEST(Settings, WhatIsLeftOutOrBelowOneIsNamed) {
  const std::string below = refusal({{"dp", "-3"}});
  EXPECT_NE(below.find("wanted at least 1"), std::string::npos) << below;
  const std::string none = refusal({{"dp", "x"}});
  EXPECT_NE(none.find("wanted a whole number"), std::string::npos) << none;
  const std::string beyond = refusal({{"params", "1e30"}});
  EXPECT_NE(beyond.find("at least 1 and below 9.2e18"), std::string::npos) << beyond;
}

// Where 0 says something, runs and plans read the same numbers; elsewhere it stands for what a run
// leaves open, which a plan is not given at all.
TEST(Settings, ZeroIsANumberOfSomeFieldsAlone) {
  std::set<std::string> bounded;
  for (const Field& field : fields(Command::plan)) {
    const bool whole = std::holds_alternative<std::int64_t RunSettings::*>(field.member);
    if (!whole || field.bytes) continue;
    for (const char* text : {"0", "-1", "1", "70000"}) {
      RunSettings run, plan;
      const std::string why = error_of([&] { set(run, field, text, Command::train); });
      const std::string also = error_of([&] { set(plan, field, text, Command::plan); });
      if (field.bounded_in_plans) {
        EXPECT_EQ(why, also) << field.name << " " << text;
      } else if (std::string(text) == "0") {
        EXPECT_NE(also.find("wanted at least 1"), std::string::npos) << field.name << also;
      }
    }
    if (field.bounded_in_plans) bounded.insert(field.name);
  }
  EXPECT_EQ(bounded, (std::set<std::string>{"lora-rank", "zero"}));
  EXPECT_EQ(ask({{"zero", "0"}, {"lora-rank", "0"}}).zero, 0);
}

TEST(Settings, ARowForEachNameWithHelpAndADefaultOfItsOwnKind) {
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

// What a run and a plan both have means the same to both: only numbers that a plan may leave out
// are written as 0 by a run.
TEST(Settings, RunsAndPlansReadTheSameTexts) {
  for (const Field& field : fields(Command::plan)) {
    if (!field.is(Command::train)) continue;
    for (const char* text : {"1", "2", "3", "2,000", "1e3", "true", "false", "0.5", "none", "work",
                             "bf16", "1f1b", "alias", "last", "x", "-1", "", "nan", "13B"}) {
      RunSettings run, plan;
      const auto take = [&](RunSettings& to, Command command) {
        return error_of([&] { set(to, field, text, command); });
      };
      const std::string why = take(run, Command::train), also = take(plan, Command::plan);
      const bool beyond = why.find(" to ") != std::string::npos || field.free_in_plans;
      if (!beyond) {
        EXPECT_EQ(why.empty(), also.empty()) << field.name << " " << text;
      }
      if (why.empty() && also.empty()) {
        EXPECT_EQ(run, plan) << field.name << " " << text;
      }
      if (!why.empty()) {
        EXPECT_EQ(why.rfind("--" + field.name + ": ", 0), 0u) << why;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::planner
