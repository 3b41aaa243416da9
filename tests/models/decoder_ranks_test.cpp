// [Note: decoding on ranks]: every family on several tensor-parallel ranks, compared with one
// process.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/models/decoder.h"
#include "tessera/models/generate.h"
#include "tests/models/decoders.h"
#include "tests/models/families.h"
#include "tests/ranks.h"
#include "tests/text.h"

namespace tessera::models {
namespace {

using test::families;
using test::make_random;
using test::random_text;
using test::reader;
using test::sparse_families;
using Texts = std::vector<std::vector<std::int64_t>>;
using MakeDecoder = decltype(&make_decoder);

// Runs `ask` on the first rank, and follow() on the others.
void on_ranks(int tp, MakeDecoder make, const ModelShape& shape, const DecoderOptions& options,
              const ReadParam& read, const std::function<void(Decoder&)>& ask) {
  over(tp, [&](const comm::Group& group) {
    DecoderOptions own = options;
    own.tp = group;
    const auto decoder = make(shape, own, read);
    if (own.tp.rank() != 0) {
      decoder->follow();
      return;
    }
    ask(*decoder);
    decoder->finish();
  });
}

// Returns the families that 2 and 4 ranks divide.
std::vector<ModelShape> divisible() {
  std::vector<ModelShape> all = families();
  for (ModelShape& shape : sparse_families()) all.push_back(std::move(shape));
  return all;
}

// Returns the logits of a decoder for the same calls: short and long texts, together and alone,
// then steps.
std::vector<at::Tensor> answers_of(Decoder& decoder) {
  const ModelShape& shape = decoder.shape();
  std::vector<at::Tensor> all;
  for (const int length : {1, 7, 40}) {
    all.push_back(decoder.read(0, random_text(shape, as_size(length), length), true).clone());
  }
  Texts texts;
  for (const int length : {3, 16, 20}) texts.push_back(random_text(shape, as_size(length), length));
  const std::vector<std::int64_t> slots = {2, 0, 1};
  all.push_back(decoder.read_each(slots, texts).clone());
  for (std::int64_t i = 0; i < 8; ++i) {
    all.push_back(decoder.step(slots, std::vector<std::int64_t>{i, 90 - i, 50}).clone());
    all.push_back(decoder.step(std::vector<std::int64_t>{1}, std::vector<std::int64_t>{i}).clone());
  }
  return all;
}

void expect_the_same(MakeDecoder make, at::ScalarType type, double bound) {
  for (const ModelShape& shape : divisible()) {
    if (shape.experts.any() && type == at::kBFloat16) continue;  // rounding changes the experts
    const auto model = make_random(shape);
    const DecoderOptions options{.type = type, .slots = 3, .capacity = 60};
    const std::vector<at::Tensor> wanted = answers_of(*make(shape, options, reader(model)));
    for (const int tp : {2, 4}) {
      SCOPED_TRACE(testing::Message() << shape.name << " on " << tp);
      std::vector<at::Tensor> got;
      on_ranks(tp, make, shape, options, reader(model),
               [&](Decoder& decoder) { got = answers_of(decoder); });
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].sizes(), wanted[i].sizes());
        ASSERT_TRUE(got[i].is_contiguous());
        ASSERT_LE((got[i] - wanted[i]).abs().max().item<double>(), bound) << "answer " << i;
      }
    }
  }
}

TEST(DecoderRanks, MatchTheLogitsOfOneProcess) { expect_the_same(make_decoder, at::kFloat, 1e-4); }
TEST(DecoderRanks, MatchWithPlainOperations) {
  expect_the_same(make_plain_decoder, at::kFloat, 1e-4);
}
// Matrices and cache are rounded as in one process; their other factors differ slightly.
TEST(DecoderRanks, MatchApproximatelyInBf16) { expect_the_same(make_decoder, at::kBFloat16, 0.2); }

Texts written_by(Decoder& decoder, double temperature) {
  Texts texts;
  for (const int length : {3, 11, 1, 20, 6}) {
    texts.push_back(random_text(decoder.shape(), as_size(length), length));
  }
  Texts got(texts.size());
  GenerateOptions options;
  options.tokens = 15;
  options.seed = 5;
  options.sampling.temperature = temperature;
  options.sampling.top_p = 0.95;
  generate(decoder, texts, options, [&](std::size_t i, std::int64_t token) {
    got[i].push_back(token);
    return i != 1 || got[i].size() < 4;  // one ends before the others
  });
  return got;
}

TEST(DecoderRanks, GenerateTheTextsOfOneProcess) {
  for (const ModelShape& shape : divisible()) {
    const auto model = make_random(shape);
    for (const double temperature : {0.0, 0.9}) {
      SCOPED_TRACE(testing::Message() << shape.name << " at " << temperature);
      const DecoderOptions options{.slots = 2, .capacity = 60};
      const auto one = make_decoder(shape, options, reader(model));
      const Texts wanted = written_by(*one, temperature);
      for (const int tp : {2, 4}) {
        // The result does not depend on other texts in the batch.
        for (const std::int64_t slots : {2, 5}) {
          const DecoderOptions shared{.slots = slots, .capacity = 60};
          on_ranks(tp, make_decoder, shape, shared, reader(model), [&](Decoder& decoder) {
            EXPECT_EQ(written_by(decoder, temperature), wanted) << tp << " ranks, " << slots;
          });
        }
      }
    }
  }
}

TEST(DecoderRanks, RejectInvalidCalls) {
  const ModelShape shape = families().front();
  const auto model = make_random(shape);
  const auto make = [&](const comm::Group& tp) {
    return make_decoder(shape, {.capacity = 8, .tp = tp}, reader(model));
  };
  // One process cannot follow, and finish() does nothing.
  const auto alone = make({});
  EXPECT_TRUE(contains(error_of([&] { alone->follow(); }), "follow"));
  alone->finish();
  over(2, [&](const comm::Group& tp) {
    const auto decoder = make(tp);
    const std::vector<std::int64_t> text = {1};
    if (tp.rank() == 1) {
      EXPECT_TRUE(contains(error_of([&] { decoder->read(0, text); }), "rank 1"));
      decoder->follow();
      return;
    }
    // Errors on the first rank are not sent to the others.
    EXPECT_TRUE(contains(error_of([&] { decoder->read(3, text); }), "slot"));
    EXPECT_EQ(decoder->read(0, text).numel(), shape.vocab);
    EXPECT_TRUE(contains(error_of([&] { decoder->follow(); }), "follow"));
    decoder->finish();
  });
  const std::string problem = error_of([&] { over(3, [&](const comm::Group& tp) { make(tp); }); });
  EXPECT_TRUE(contains(problem, "heads is 4")) << problem;
  ModelShape sparse = sparse_families().front();
  sparse.experts.width = 21;
  const std::string odd = error_of([&] {
    over(2, [&](const comm::Group& tp) {
      make_decoder(sparse, {.capacity = 8, .tp = tp}, reader(make_random(sparse)));
    });
  });
  EXPECT_TRUE(contains(odd, "expert-ffn is 21")) << odd;
}

}  // namespace
}  // namespace tessera::models
