// [Note: decoding on ranks] and [Note: decoding along cp]: every family on several ranks, compared
// with one process.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/memory/allocator.h"
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

// Number of ranks along each axis.
struct Sizes {
  int tp = 1, cp = 1;
};
std::ostream& operator<<(std::ostream& out, const Sizes& of) {
  return out << "tp " << of.tp << " cp " << of.cp;
}

// Runs `ask` on the first rank, and follow() on the others.
void on_ranks(const Sizes& of, MakeDecoder make, const ModelShape& shape,
              const DecoderOptions& options, const ReadParam& read,
              const std::function<void(Decoder&)>& ask) {
  over(of.tp * of.cp, [&](const comm::Group& world) {
    const comm::Mesh mesh(world, Axes({{Axis::tp, of.tp}, {Axis::cp, of.cp}}));
    DecoderOptions own = options;
    own.tp = mesh.tp();
    own.cp = mesh.group(Axis::cp);
    const auto decoder = make(shape, own, read);
    if (world.rank() != 0) {
      decoder->follow();
      return;
    }
    ask(*decoder);
    decoder->finish();
  });
}

constexpr Sizes kMeshes[] = {{2, 1}, {4, 1}, {1, 2}, {1, 3}, {2, 2}};

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
    for (const Sizes& of : kMeshes) {
      SCOPED_TRACE(testing::Message() << shape.name << " on " << of);
      std::vector<at::Tensor> got;
      on_ranks(of, make, shape, options, reader(model),
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
      for (const Sizes& of : kMeshes) {
        // The result does not depend on other texts in the batch.
        for (const std::int64_t slots : {2, 5}) {
          const DecoderOptions shared{.slots = slots, .capacity = 60};
          on_ranks(of, make_decoder, shape, shared, reader(model), [&](Decoder& decoder) {
            EXPECT_EQ(written_by(decoder, temperature), wanted) << of << ", " << slots;
          });
        }
      }
    }
  }
}

ModelShape long_gpt() { return gpt_shape(2, 32, 4, 61, 2000); }
ModelShape long_llama() {
  ModelShape shape = test::small_llama("llama with a window in one layer", 61);
  shape.layers = 2;
  shape.window = 301;
  shape.window_from = 1;
  return shape;
}

// Prompts of several chunks of rows, of odd lengths, and one whose last chunk has a single row.
TEST(DecoderRanks, ReadLongPromptsAlongCp) {
  for (const ModelShape& shape : {long_gpt(), long_llama()}) {
    const auto model = make_random(shape);
    const Texts texts = {random_text(shape, 1027, 1), random_text(shape, 5, 2),
                         random_text(shape, 769, 3), random_text(shape, 1025, 4)};
    const std::vector<std::int64_t> slots = {3, 0, 1, 2};
    for (const MakeDecoder make : {make_decoder, make_plain_decoder}) {
      const DecoderOptions options{.slots = 4, .capacity = 1030};
      const auto ask = [&](Decoder& decoder) {
        std::vector<at::Tensor> all = {decoder.read_each(slots, texts).clone()};
        for (std::int64_t i = 0; i < 3; ++i) {
          all.push_back(decoder.step(slots, std::vector<std::int64_t>{i, 9, 30, 2}).clone());
        }
        return at::stack(all);
      };
      const at::Tensor wanted = ask(*make(shape, options, reader(model)));
      for (const Sizes& of : {Sizes{1, 2}, Sizes{1, 3}, Sizes{2, 2}}) {
        at::Tensor got;
        on_ranks(of, make, shape, options, reader(model),
                 [&](Decoder& decoder) { got = ask(decoder); });
        EXPECT_LE((got - wanted).abs().max().item<double>(), 1e-4) << shape.name << " " << of;
      }
    }
  }
}

// Each rank stores 1 / cp of the tokens, rounded up.
TEST(DecoderRanks, CutTheCacheOverCp) {
  memory::install();
  const ModelShape shape = long_gpt();
  const auto model = make_random(shape);
  for (const MakeDecoder make : {make_decoder, make_plain_decoder}) {
    for (const int cp : {1, 2, 3}) {
      over(cp, [&](const comm::Group& group) {
        const auto bytes_of = [&](std::int64_t capacity) {
          const auto ledger = std::make_shared<memory::Ledger>();
          const memory::OwnerScope owner(ledger);
          const auto decoder =
              make(shape, {.slots = 3, .capacity = capacity, .cp = group}, reader(model));
          return ledger->counts().total.now;
        };
        const std::int64_t of_a_token = 3 * shape.layers * 2 * shape.hidden * 4;
        EXPECT_EQ(bytes_of(1000) - bytes_of(10),
                  ((1000 + cp - 1) / cp - (10 + cp - 1) / cp) * of_a_token);
      });
    }
  }
}

// The formulas of [Note: decoding along cp].
TEST(DecoderRanks, SendTheBytesOfTheFormulaAlongCp) {
  const ModelShape shape = long_gpt();
  const auto model = make_random(shape);
  for (const int cp : {2, 3}) {
    over(cp, [&](const comm::Group& group) {
      const auto decoder = make_decoder(shape, {.capacity = 1030, .cp = group}, reader(model));
      const auto sent = [&] { return static_cast<std::int64_t>(group.traffic().sent_bytes); };
      if (group.rank() != 0) return decoder->follow();
      const std::int64_t results = (cp - 1) * shape.heads * (shape.head_dim() + 1) * 4;
      const std::int64_t queries = (cp - 1) * shape.hidden * 4;
      std::int64_t before = sent();
      decoder->read(0, random_text(shape, 1027, 1));
      std::int64_t expected = 0, rows = 0;
      for (std::int64_t done = 0; done < 1027; done += 256 * cp) {
        rows = (std::min<std::int64_t>(256 * cp, 1027 - done) + cp - 1) / cp;
        expected += shape.layers * rows * (queries + results);
      }
      // The last chunk is gathered for the logits.
      EXPECT_EQ(sent() - before, expected + (cp - 1) * rows * shape.hidden * 4);
      before = sent();
      decoder->step(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{7});
      EXPECT_EQ(sent() - before, shape.layers * results);
      decoder->finish();
    });
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
