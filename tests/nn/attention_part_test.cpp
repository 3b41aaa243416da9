// Compares attention of some queries to some keys with masks in double precision.

#include "tessera/nn/attention_part.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <random>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_attention.h"
#include "tests/text.h"

namespace tessera::nn {
namespace {

struct PartCase {
  std::int64_t first_query, queries, first_key, keys, tokens;
  std::int64_t heads = 4, kv_heads = 4, window = 0;
  bool documents = false;
  double rate = 0, scale = 0;

  AttentionPart part() const { return {first_query, first_key, tokens}; }
  std::string text() const {
    return str("queries [", first_query, ", ", first_query + queries, "), keys [", first_key, ", ",
               first_key + keys, ") of ", tokens, ", ", heads, "/", kv_heads, " heads, window ",
               window, documents ? ", documents" : "", ", dropout ", rate, ", scale ", scale);
  }
};

const std::vector<PartCase> kPartCases = {
    {0, 7, 0, 7, 7},
    {0, 300, 0, 300, 300},
    {5, 9, 0, 14, 20},                               // the last queries
    {10, 10, 0, 10, 40},                             // keys before the queries
    {300, 150, 20, 200, 500, 4, 2},                  // several blocks, grouped queries
    {130, 200, 130, 200, 400, 3, 1, 0, false, 0.3},  // on the diagonal, with dropout
    {130, 200, 0, 130, 330, 2, 2, 100},              // some queries see no key
    {130, 200, 0, 130, 330, 2, 1, 3, false, 0.2},    // only the first two queries see a key
    {200, 50, 0, 60, 250, 2, 2, 40},                 // no query sees a key
    {64, 200, 32, 100, 300, 4, 2, 0, true},
    {64, 200, 32, 232, 300, 4, 4, 50, true, 0.4},
    {20, 30, 10, 60, 80, 2, 2},  // more keys than the queries see
    {20, 30, 10, 60, 80, 2, 1, 7, true, 0, 0.9},
    {128, 1, 0, 129, 129, 2, 2},
};

AttentionOptions options_of_part(const PartCase& of, std::int64_t batch, unsigned seed) {
  AttentionOptions options;
  options.window = of.window;
  options.dropout = {of.rate, 11, 12345, 7};
  options.first_head = 3;
  options.scale = of.scale;
  if (!of.documents) return options;
  std::mt19937 random(seed);
  options.document_starts = torch::zeros({batch, of.tokens}, torch::kInt);
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int32_t begin = 0;
    for (std::int64_t t = 0; t < of.tokens; ++t) {
      if (random() % 70 == 0) begin = static_cast<std::int32_t>(t);
      options.document_starts[b][t] = begin;
    }
  }
  return options;
}

void expect_near_part(const at::Tensor& got, const at::Tensor& wanted, double tolerance,
                      const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  const double most = wanted.abs().max().item<double>() + 1e-6;
  EXPECT_LE((got.to(torch::kDouble) - wanted).abs().max().item<double>() / most, tolerance) << what;
}

struct PartOperands {
  at::Tensor q, k, v, dout, lse, delta;

  PartOperands to(at::ScalarType type, at::ScalarType sums) const {
    return {q.to(type), k.to(type), v.to(type), dout.to(type), lse.to(sums), delta.to(sums)};
  }
};

PartOperands random_operands(const PartCase& of, std::int64_t batch, const AttentionOptions& how,
                             at::ScalarType type) {
  const std::int64_t dim = 8;
  const auto random = [&](std::int64_t tokens, std::int64_t heads) {
    return torch::randn({batch, tokens, heads, dim}).to(type).to(torch::kDouble);
  };
  PartOperands in{random(of.queries, of.heads),
                  random(of.keys, of.kv_heads),
                  random(of.keys, of.kv_heads),
                  random(of.queries, of.heads),
                  {},
                  {}};
  // Other keys, elsewhere, increase lse.
  const auto result = masked_attention_forward(in.q, in.k, in.v, of.part(), how);
  in.lse = at::logaddexp(result.lse, torch::randn(result.lse.sizes(), torch::kDouble));
  in.delta = torch::randn(result.lse.sizes(), torch::kDouble);
  return in;
}

void expect_equal_masked(const PartialAttention& got, const PartialAttention& wanted,
                         double tolerance, const std::string& text) {
  const at::Tensor none = wanted.lse.isinf();
  EXPECT_TRUE(at::equal(got.lse.isinf(), none)) << text;
  EXPECT_TRUE((got.lse.masked_select(none) == -INFINITY).all().item<bool>()) << text;
  EXPECT_TRUE((got.out.transpose(1, 2).index({none}) == 0).all().item<bool>()) << text;
  expect_near_part(got.out, wanted.out, tolerance, text);
  expect_near_part(got.lse.masked_fill(none, 0), wanted.lse.masked_fill(none, 0), tolerance,
                   text + ", lse");
}

void expect_equal_gradients(const PartialGradients& got, const PartialGradients& wanted,
                            double tolerance, const std::string& text) {
  expect_near_part(got.q, wanted.q, tolerance, text + ", dq");
  expect_near_part(got.k, wanted.k, tolerance, text + ", dk");
  expect_near_part(got.v, wanted.v, tolerance, text + ", dv");
}

TEST(AttentionPart, MatchesMasksInDoublePrecision) {
  torch::manual_seed(2);
  const std::int64_t batch = 2;
  for (const PartCase& of : kPartCases) {
    const AttentionOptions how = options_of_part(of, batch, 5);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const std::string text = of.text() + ", " + c10::toString(type);
      const double tolerance = type == at::kBFloat16 ? 0.03 : type == at::kHalf ? 5e-3 : 5e-6;
      const PartOperands exact = random_operands(of, batch, how, type);
      const auto& [q, k, v, dout, lse, delta] = exact;
      const auto wanted = masked_attention_forward(q, k, v, of.part(), how);
      const auto wanted_grad = masked_attention_backward(q, k, v, dout, lse, delta, of.part(), how);
      const PartOperands in = exact.to(type, at::kFloat);
      const auto got = attention_part_forward(in.q, in.k, in.v, of.part(), how);
      expect_equal_masked(got, wanted, tolerance, text);
      EXPECT_EQ(got.lse.scalar_type(), at::kFloat);
      expect_equal_gradients(
          attention_part_backward(in.q, in.k, in.v, in.dout, in.lse, in.delta, of.part(), how),
          wanted_grad, tolerance, text);
    }
  }
}

// The processor decides whether heads are gathered.
TEST(AttentionPart, GatheredHeadsMatchMasks) {
  torch::manual_seed(3);
  const std::int64_t batch = 2;
  for (PartCase of : kPartCases) {
    of.kv_heads = of.heads;
    const AttentionOptions how = options_of_part(of, batch, 6);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const std::string text = of.text() + ", gathered, " + c10::toString(type);
      const double tolerance = type == at::kFloat ? 5e-6 : 0.03;
      const PartOperands exact = random_operands(of, batch, how, type);
      const PartOperands in = exact.to(type, at::kFloat);
      const BlockedAttention blocks{in.q, in.k, in.v, of.part(), &how, true};
      const PartialAttention got{torch::empty_like(in.q), torch::empty_like(in.lse)};
      attend_in_blocks(blocks, got.out, got.lse);
      expect_equal_masked(got, masked_attention_forward(exact.q, exact.k, exact.v, of.part(), how),
                          tolerance, text);
      const PartialGradients grad{torch::empty_like(in.q), torch::empty_like(in.k),
                                  torch::empty_like(in.v)};
      attend_in_blocks_backward(blocks, in.dout, in.lse, in.delta, grad);
      expect_equal_gradients(grad,
                             masked_attention_backward(exact.q, exact.k, exact.v, exact.dout,
                                                       exact.lse, exact.delta, of.part(), how),
                             tolerance, text);
    }
  }
}

TEST(AttentionPart, WholeSequencesHaveTheBitsOfAttention) {
  torch::manual_seed(4);
  const std::int64_t tokens = 200, heads = 3;
  const at::Tensor qkv = torch::randn({2, tokens, 3 * heads * 16});
  const auto wanted = attention_forward(qkv, heads, false);
  const auto all = qkv.unflatten(2, {3, heads, 16}).unbind(2);
  const auto got = attention_part_forward(all[0], all[1], all[2], {.tokens = tokens}, {});
  EXPECT_TRUE(at::equal(got.out.flatten(2), wanted[0]));
  EXPECT_TRUE(at::equal(got.lse, wanted[1]));
}

TEST(AttentionPart, SeesKeysIffAQueryDoes) {
  std::mt19937 random(7);
  int seen = 0;
  for (int i = 0; i < 500; ++i) {
    PartCase of{};
    of.tokens = 24;
    of.first_key = random() % 12;
    of.first_query = of.first_key + random() % 10;
    of.keys = 1 + random() % 4;
    of.queries = 1 + random() % 3;
    of.window = random() % 3 == 0 ? 1 + random() % 6 : 0;
    of.documents = random() % 2 == 0;
    const AttentionOptions how = options_of_part(of, 2, static_cast<unsigned>(i));
    if (of.documents) {
      how.document_starts.zero_();
      for (std::int64_t b = 0; b < 2; ++b) {
        const std::int64_t cut = random() % 24;
        how.document_starts[b].narrow(0, cut, 24 - cut).fill_(cut);
      }
    }
    const at::Tensor mask =
        attention_mask(how, of.part(), of.queries, of.keys, c10::Device(c10::kCPU));
    EXPECT_EQ(sees_keys(of.part(), of.queries, of.keys, how), mask.any().item<bool>()) << of.text();
    seen += mask.any().item<bool>();
  }
  EXPECT_GT(seen, 100);
  EXPECT_LT(seen, 480);
}

TEST(AttentionPart, RejectsWhatDoesNotFit) {
  const at::Tensor q = torch::zeros({1, 4, 2, 8}), k = torch::zeros({1, 4, 2, 8});
  const auto message = [&](const at::Tensor& keys, const AttentionPart& part,
                           const AttentionOptions& options) {
    return error_of([&] { attention_part_forward(q, keys, keys, part, options); });
  };
  EXPECT_EQ(message(k, {}, {}),
            "Attention of a part: queries at [0, 4) and keys at [0, 4) of 0 tokens. They must be "
            "within the sequence, and the first key not after the first query.");
  EXPECT_TRUE(contains(message(k, {2, 3, 20}, {}), "queries at [2, 6) and keys at [3, 7)"));
  EXPECT_EQ(message(torch::zeros({1, 4, 3, 8}), {.tokens = 4}, {}),
            "Attention of a part: queries [1, 4, 2, 8], keys [1, 4, 3, 8] and values [1, 4, 3, 8]. "
            "They must have one type and be [batch, tokens, heads, head width], and the heads a "
            "multiple of the KV heads.");
  EXPECT_TRUE(contains(message(k.to(torch::kDouble), {.tokens = 4}, {}), "one type"));
  EXPECT_EQ(message(k, {.tokens = 8}, {.document_starts = torch::zeros({1, 4}, torch::kInt)}),
            "Attention of a part: document starts are [1, 4] of type Int. They must be contiguous "
            "int32 [1, 8].");
}

}  // namespace
}  // namespace tessera::nn
