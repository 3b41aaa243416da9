// A decoder with its cache gives the logits of the whole model, at every position.

#include "tessera/models/decoder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/models/generate.h"
#include "tessera/models/language_model.h"
#include "tests/models/decoders.h"
#include "tests/models/families.h"
#include "tests/text.h"

namespace tessera::models {
namespace {

using test::make_random;
using test::random_text;
using test::reader;

ModelShape small_gpt() { return gpt_shape(2, 24, 3, 61, 320); }

ModelShape small_llama() {
  ModelShape shape = find_model_shape("llama-tiny");
  shape.layers = 2;
  shape.hidden = 32;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.ffn = 44;
  shape.vocab = 61;
  return shape;
}

std::vector<ModelShape> shapes() {
  std::vector<ModelShape> all = {small_gpt(), small_llama()};
  ModelShape& scaled =
      all.emplace_back(small_llama());  // scaled as in Llama 3.1, tied, one kv head
  scaled.kv_heads = 1;
  scaled.tied = true;
  scaled.rotary_base = 5e5;
  scaled.rotary_scaling = {RotaryScaling::Kind::llama3, 8, 1, 4, 32};
  ModelShape& qwen = all.emplace_back(small_llama());
  qwen.biases = {true, false, false, false};
  qwen.rotary_scaling = {RotaryScaling::Kind::linear, 2};
  ModelShape& mistral = all.emplace_back(small_llama());
  mistral.window = 5;
  mistral.window_from = 1;
  mistral.head_width = 12;
  ModelShape& yarn = all.emplace_back(small_llama());
  yarn.rotary_base = 50;
  yarn.rotary_scaling = {RotaryScaling::Kind::yarn, 4, 1, 4, 64};
  yarn.rotary_scaling.beta_fast = 4;
  for (const ModelShape& shape : test::families()) {
    if (shape.qk_norm || shape.post_norms) all.push_back(shape);  // Qwen3, Gemma 2 and 3
  }
  for (ModelShape shape : test::sparse_families()) {
    if (shape.positions > 0) shape.positions = 320;
    all.push_back(shape);
  }
  return all;
}

at::Tensor full(LanguageModel& model, const std::vector<std::int64_t>& text) {
  const at::NoGradGuard no_gradients;
  return model.forward(at::tensor(text, at::kLong).unsqueeze(0)).select(0, 0);  // [T, V]
}

using Make = decltype(&make_decoder);

void expect_equal_at_every_position(Make make, at::ScalarType type, double bound) {
  for (const ModelShape& shape : shapes()) {
    SCOPED_TRACE(testing::Message()
                 << shape.name << " positions " << shape.positions << " kv-heads " << shape.kv_heads
                 << " window " << shape.window);
    const auto model = make_random(shape);
    const auto decoder = make(shape, {.type = type, .slots = 3, .capacity = 300}, reader(model));
    // Prompts of different lengths: one token, a few, and more than a chunk.
    const std::size_t lengths[] = {1, 7, 280}, more = 12;
    std::vector<std::vector<std::int64_t>> texts;
    std::vector<at::Tensor> wanted;
    int rows = 0, beyond = 0;  // rows whose logits differ by more than the bound
    const auto compare = [&](const at::Tensor& got, const at::Tensor& want) {
      const at::Tensor differences = (got - want).abs().amax(-1).view({-1});
      rows += static_cast<int>(differences.numel());
      beyond += differences.gt(bound).sum().item<int>();
    };
    for (std::int64_t slot = 0; slot < 3; ++slot) {
      const std::size_t length = lengths[slot];
      texts.push_back(random_text(shape, length + more, static_cast<int>(slot)));
      wanted.push_back(full(*model, texts.back()));
      const std::vector<std::int64_t> prompt(
          texts.back().begin(), texts.back().begin() + static_cast<std::ptrdiff_t>(length));
      const at::Tensor all = decoder->read(slot, prompt, true);
      compare(all, wanted.back().narrow(0, 0, static_cast<std::int64_t>(length)));
      const at::Tensor last = decoder->read(slot, prompt);
      compare(last, wanted.back().select(0, static_cast<std::int64_t>(length) - 1));
    }
    for (std::size_t i = 0; i < more; ++i) {
      // All of them, in a different order each time, and sometimes only one.
      std::vector<std::int64_t> slots = {2, 0, 1}, tokens;
      std::rotate(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(i % 3), slots.end());
      for (const auto& group :
           {std::vector<std::int64_t>{slots[0], slots[1]}, std::vector<std::int64_t>{slots[2]}}) {
        tokens.clear();
        for (const std::int64_t slot : group) tokens.push_back(nth(texts, slot)[lengths[slot] + i]);
        const at::Tensor logits = decoder->step(group, tokens);
        for (std::size_t k = 0; k < group.size(); ++k) {
          const auto at = static_cast<std::int64_t>(lengths[group[k]] + i);
          compare(logits.select(0, static_cast<std::int64_t>(k)),
                  nth(wanted, group[k]).select(0, at));
        }
      }
    }
    // Rounding to 8 bits changes the experts of some tokens.
    const bool some = shape.experts.any() && type == at::kBFloat16;
    EXPECT_LE(beyond, some ? rows / 5 : 0) << "of " << rows;
  }
}

TEST(Decoder, MatchesTheLogitsOfTheWholeModel) {
  expect_equal_at_every_position(make_decoder, at::kFloat, 1e-4);
}
TEST(Decoder, MatchesWithPlainOperations) {
  expect_equal_at_every_position(make_plain_decoder, at::kFloat, 1e-4);
}
// Loosely: parameters and cache are rounded to 8 bits.
TEST(Decoder, MatchesApproximatelyInBf16) {
  expect_equal_at_every_position(make_decoder, at::kBFloat16, 0.35);
}

TEST(Generate, MatchesTheWholeModelTokenByToken) {
  for (const ModelShape& shape : shapes()) {
    const auto model = make_random(shape);
    const auto decoder = make_decoder(shape, {.slots = 2, .capacity = 64}, reader(model));
    std::vector<std::vector<std::int64_t>> texts;
    for (const int length : {3, 11, 1, 20, 6}) {
      texts.push_back(random_text(shape, as_size(length), length));
    }
    std::vector<std::vector<std::int64_t>> got(texts.size());
    GenerateOptions options;
    options.tokens = 15;
    options.sampling.temperature = 0;
    const Generated counts =
        generate(*decoder, texts, options, [&](std::size_t i, std::int64_t token) {
          got[i].push_back(token);
          return i != 1 || got[i].size() < 4;  // one ends before the others
        });
    EXPECT_EQ(counts.tokens, 4 * 15 + 4);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::vector<std::int64_t> text = texts[i];
      for (const std::int64_t token : got[i]) {
        ASSERT_EQ(full(*model, text)[-1].argmax().item<std::int64_t>(), token) << "text " << i;
        text.push_back(token);
      }
      EXPECT_EQ(got[i].size(), i == 1 ? 4U : 15U);
    }
  }
}

// Several texts at once, short and long in any order, have the bits of each text read alone.
TEST(Decoder, ReadsTextsTogetherWithTheBitsOfEachAlone) {
  for (const ModelShape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const auto model = make_random(shape);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const DecoderOptions options{.type = type, .slots = 9, .capacity = 60};
      const auto alone = make_decoder(shape, options, reader(model));
      const auto together = make_decoder(shape, options, reader(model));
      std::vector<std::vector<std::int64_t>> texts;
      for (const int length : {1, 5, 16, 17, 2, 1, 30, 16, 16}) {
        texts.push_back(random_text(shape, as_size(length), length));
      }
      const std::vector<std::int64_t> slots = {4, 0, 8, 2, 1, 3, 5, 7, 6};
      const at::Tensor logits = together->read_each(slots, texts);
      std::vector<std::int64_t> tokens;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        EXPECT_TRUE(logits.select(0, row).equal(alone->read(slots[i], texts[i]))) << i;
        EXPECT_EQ(together->length(slots[i]), static_cast<std::int64_t>(texts[i].size()));
        tokens.push_back(row);
      }
      // The cache is equal too.
      EXPECT_TRUE(together->step(slots, tokens).equal(alone->step(slots, tokens)));
    }
  }
}

// A text depends on the seed and its number, not on other texts or the number of slots.
TEST(Generate, TextDoesNotDependOnOtherTexts) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const ModelShape shape = small_llama();
    const auto model = make_random(shape);
    std::vector<std::vector<std::int64_t>> texts;
    for (int i = 0; i < 7; ++i) texts.push_back(random_text(shape, as_size(1 + 5 * i), i));
    const auto written = [&](std::int64_t slots, std::uint64_t seed) {
      const auto decoder =
          make_decoder(shape, {.type = type, .slots = slots, .capacity = 64}, reader(model));
      std::vector<std::vector<std::int64_t>> got(texts.size());
      GenerateOptions options;
      options.tokens = 20;
      options.seed = seed;
      options.sampling = {0.9, 40, 0.95, 0.01};
      generate(*decoder, texts, options, [&](std::size_t i, std::int64_t token) {
        got[i].push_back(token);
        return true;
      });
      return got;
    };
    const auto one = written(1, 5);
    EXPECT_EQ(one, written(3, 5));
    EXPECT_EQ(one, written(7, 5));
    EXPECT_NE(one, written(3, 6));
  }
}

// Short prompts and steps use Tessera's kernels, which divide outputs among threads.
TEST(Decoder, IsBitwiseEqualOnAnyNumberOfThreads) {
  for (const ModelShape& shape : shapes()) {
    const auto model = make_random(shape);
    const auto logits = [&](int threads) {
      const int before = at::get_num_threads();
      at::set_num_threads(threads);
      const auto decoder = make_decoder(shape, {.slots = 2, .capacity = 64}, reader(model));
      std::vector<at::Tensor> all;
      for (const std::int64_t slot : {0, 1}) {
        const auto prompt = random_text(shape, as_size(9 + slot), static_cast<int>(slot));
        all.push_back(decoder->read(slot, prompt, true).clone());
      }
      for (std::int64_t i = 0; i < 5; ++i) {
        all.push_back(
            decoder->step(std::vector<std::int64_t>{0, 1}, std::vector{i, i + 1}).clone());
      }
      at::set_num_threads(before);
      return all;
    };
    const std::vector<at::Tensor> one = logits(1), three = logits(3);
    ASSERT_EQ(one.size(), three.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], three[i])) << i;
  }
}

// In training experts with a capacity skip tokens.
TEST(Decoder, ExpertsTakeEveryToken) {
  ModelShape shape = test::sparse_families().front();
  const auto model = make_random(shape);
  const auto text = random_text(shape, 30, 1);
  shape.experts.capacity = 0.5;
  shape.experts.jitter = 0.3;
  const auto decoder = make_decoder(shape, {.capacity = 64}, reader(model));
  EXPECT_LE((decoder->read(0, text, true) - full(*model, text)).abs().max().item<double>(), 1e-4);
}

TEST(Decoder, RejectsInvalidCalls) {
  const ModelShape shape = small_gpt();
  const auto model = make_random(shape);
  EXPECT_TRUE(
      contains(error_of([&] { make_decoder(shape, {.capacity = 321}, reader(model)); }), "320"));
  // Beyond the context of a model with dynamic rotary scaling.
  ModelShape dynamic = small_llama();
  dynamic.context = 40;
  dynamic.rotary_scaling = {RotaryScaling::Kind::dynamic, 2};
  const auto llama = make_random(dynamic);
  EXPECT_TRUE(contains(error_of([&] { make_decoder(dynamic, {.capacity = 41}, reader(llama)); }),
                       "dynamic rotary"));
  EXPECT_EQ(make_decoder(dynamic, {}, reader(llama))->options().capacity, 40);
  EXPECT_TRUE(contains(error_of([&] { full(*llama, random_text(dynamic, 41, 1)); }), "at most 40"));
  EXPECT_EQ(full(*llama, random_text(dynamic, 40, 1)).size(0), 40);
  const auto decoder = make_decoder(shape, {.slots = 2, .capacity = 4}, reader(model));
  const std::vector<std::int64_t> wrong = {1, 61}, none, longer = {1, 2, 3, 4, 5};
  EXPECT_TRUE(contains(error_of([&] { decoder->read(0, wrong); }), "0 to 60"));
  EXPECT_TRUE(contains(error_of([&] { decoder->read(0, none); }), "empty"));
  EXPECT_TRUE(contains(error_of([&] { decoder->read(0, longer); }), "4"));
  EXPECT_TRUE(contains(error_of([&] { decoder->read(2, wrong); }), "0 to 1"));
  const std::vector<std::int64_t> twice = {1, 1}, tokens = {3, 3};
  EXPECT_TRUE(contains(error_of([&] { decoder->step(twice, tokens); }), "twice"));
}

}  // namespace
}  // namespace tessera::models
