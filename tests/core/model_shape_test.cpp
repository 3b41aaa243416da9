#include "tessera/core/model_shape.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"

namespace tessera {
namespace {

TEST(ModelShape, ParameterCountsAreExact) {
  const std::vector<std::pair<const char*, std::int64_t>> known = {
      {"gpt2-124m", 124'439'808},     {"gpt2-355m", 354'823'168},
      {"gpt2-774m", 774'030'080},     {"gpt2-xl", 1'557'611'200},
      {"llama2-7b", 6'738'415'616},   {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192}, {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496}, {"llama3.1-405b", 405'853'388'800},
      {"llama3.1-8b", 8'030'261'248}, {"llama3.1-70b", 70'553'706'496},
      {"llama3.2-1b", 1'235'814'400}, {"llama3.2-3b", 3'212'749'824},
      {"qwen2.5-0.5b", 494'032'768},  {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-7b", 7'615'616'512},  {"mistral-7b", 7'241'732'096},
      {"gpt2", 124'439'808},          {"gpt2-1558m", 1'557'611'200},
  };
  for (const auto& [name, params] : known) EXPECT_EQ(find_model_shape(name).params(), params);
}

TEST(ModelShape, Gpt3SizesMatchTheirNames) {
  const std::vector<std::pair<const char*, double>> named = {
      {"gpt3-125m", 125e6}, {"gpt3-350m", 356e6}, {"gpt3-760m", 760e6}, {"gpt3-1.3b", 1.3e9},
      {"gpt3-2.7b", 2.7e9}, {"gpt3-6.7b", 6.7e9}, {"gpt3-13b", 12.9e9}, {"gpt3-175b", 175e9}};
  for (const auto& [name, params] : named) {
    EXPECT_NEAR(static_cast<double>(find_model_shape(name).params()) / params, 1.0, 0.02) << name;
  }
}

TEST(ModelShape, RejectsUnknownNamesAndInvalidSizes) {
  EXPECT_THROW(find_model_shape("gpt2-xxl"), UsageError);
  EXPECT_THROW(gpt_shape(0, 64, 4, 100, 16), UsageError);
  EXPECT_THROW(gpt_shape(2, 65, 4, 100, 16), UsageError);
  EXPECT_THROW(gpt_shape(2, 64, 4, -1, 16), UsageError);
  EXPECT_THROW(gpt_shape(2, std::int64_t{1} << 62, 4, 100, 16), UsageError);
  try {
    find_model_shape("gpt2-x1");
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean gpt2-xl"), std::string::npos);
  }
}

TEST(ModelShape, CheckNamesTheInvalidField) {
  const auto refused = [](auto change, const char* word) {
    ModelShape shape = find_model_shape("llama3.2-1b");
    change(shape);
    try {
      check(shape);
      ADD_FAILURE() << word;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  refused([](ModelShape& s) { s.head_width = 63; }, "even width");
  refused([](ModelShape& s) { s.head_width = -1; }, "a head's width");
  refused([](ModelShape& s) { s.window = -1; }, "window");
  refused([](ModelShape& s) { s.window_from = 17; }, "first layer with a window");
  refused([](ModelShape& s) { s.rotary_base = 0; }, "base");
  refused([](ModelShape& s) { s.rotary_scaling.factor = 0; }, "factor");
  refused([](ModelShape& s) { s.rotary_scaling.high_freq_factor = 1; }, "high_freq_factor");
  refused([](ModelShape& s) { s.norm_eps = -1; }, "epsilon");
  refused(
      [](ModelShape& s) {
        s.rotary_scaling.kind = RotaryScaling::Kind::dynamic;
        s.context = 0;
      },
      "context");
}

TEST(ModelShape, LongestSequenceFollowsFromPositions) {
  ModelShape shape = find_model_shape("llama2-7b");
  EXPECT_EQ(shape.longest(), 0);
  shape.rotary_scaling.kind = RotaryScaling::Kind::yarn;
  EXPECT_EQ(shape.longest(), 0);
  shape.rotary_scaling.kind = RotaryScaling::Kind::dynamic;
  EXPECT_EQ(shape.longest(), 4096);
  EXPECT_NE(longest_reason(shape).find("dynamic rotary scaling"), std::string::npos);
  shape = find_model_shape("gpt2-124m");
  EXPECT_EQ(shape.longest(), 1024);
  EXPECT_EQ(longest_reason(shape), "the model has 1024 positions");
}

TEST(ModelShape, HeadWidthMayDifferFromHiddenPerHead) {
  ModelShape shape = find_model_shape("qwen2.5-0.5b");
  const std::int64_t before = shape.layer_params();
  shape.head_width = 128;  // twice as wide
  check(shape);
  EXPECT_EQ(shape.layer_params() - before, 896 * (2 * 896 + 2 * 128) + 896 + 2 * 128);
}

TEST(ModelShape, ParameterCountsAddUp) {
  for (const ModelShape& shape : model_shapes()) {
    check(shape);
    EXPECT_EQ(shape.params(), shape.block_params() + shape.embedding_params() +
                                  shape.final_norm_params() + shape.head_params());
  }
}

}  // namespace
}  // namespace tessera
