// Cases of attention, their references in one process, and the tensors of one rank.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <random>
#include <string>
#include <vector>

#include "tessera/context_parallel/attention.h"
#include "tessera/core/text.h"
#include "tessera/nn/ops.h"
#include "tests/ranks.h"

namespace tessera::context_parallel::test {

using tessera::over;

struct Case {
  std::int64_t batch = 2, chunk = 4;  // sequences, and tokens of each of the 2 · ranks chunks
  std::int64_t heads = 6, kv_heads = 6, dim = 4;
  std::int64_t window = 0;
  bool documents = false;
  double rate = 0;  // of dropout
  double scale = 0, cap = 0;
  at::ScalarType type = at::kFloat;

  std::int64_t tokens(int ranks) const { return 2 * ranks * chunk; }
  std::int64_t width() const { return (heads + 2 * kv_heads) * dim; }
  std::string text(const Axis& axis) const {
    return tessera::str(name(axis.kind), " over ", axis.size(), " ranks, chunks of ", chunk, ", ",
                        heads, "/", kv_heads, " heads, window ", window,
                        documents ? ", documents" : "", ", dropout ", rate, ", scale ", scale,
                        ", cap ", cap, ", ", c10::toString(type));
  }
};

// Starts of documents of random lengths, different in each sequence.
inline at::Tensor random_documents(std::int64_t batch, std::int64_t tokens, std::mt19937& random) {
  const at::Tensor starts = torch::zeros({batch, tokens}, torch::kInt);
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int32_t begin = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (random() % static_cast<unsigned>(1 + tokens / 4) == 0)
        begin = static_cast<std::int32_t>(t);
      starts[b][t] = begin;
    }
  }
  return starts;
}

// A case with its tensors of whole sequences.
struct Whole {
  Case of;
  nn::AttentionOptions options;
  at::Tensor qkv, dout;  // given
  at::Tensor out, dqkv;  // expected
};

// Sets `out` and `dqkv` to the results of nn::attention.
inline void attend(Whole& whole) {
  const at::Tensor x = whole.qkv.clone().requires_grad_();
  const at::Tensor out = nn::attention(x, whole.of.heads, whole.of.kv_heads, whole.options);
  out.backward(whole.dout);
  whole.out = out.detach();
  whole.dqkv = x.grad();
}

inline nn::AttentionOptions options_of(const Case& of, int ranks, std::mt19937& random) {
  nn::AttentionOptions options;
  options.window = of.window;
  options.dropout = {of.rate, 11, 12345, 7};
  options.first_head = 5;
  options.scale = of.scale;
  options.cap = of.cap;
  if (of.documents) options.document_starts = random_documents(of.batch, of.tokens(ranks), random);
  return options;
}

// The tokens of one rank.
inline at::Tensor part_of(const at::Tensor& whole, const SequencePart& part) {
  std::vector<at::Tensor> chunks;
  for (const TokenRange& range : part.ranges(whole.size(1) / part.parts)) {
    chunks.push_back(whole.narrow(1, range.position, range.count));
  }
  return at::cat(chunks, 1);
}

// Largest difference relative to the largest expected value.
inline double difference(const at::Tensor& got, const at::Tensor& wanted, const at::Tensor& whole) {
  EXPECT_EQ(got.sizes(), wanted.sizes());
  if (got.sizes() != wanted.sizes()) return 1;
  const auto wide = [](const at::Tensor& x) { return x.to(torch::kDouble); };
  return (wide(got) - wide(wanted)).abs().max().item<double>() /
         (wide(whole).abs().max().item<double>() + 1e-30);
}

}  // namespace tessera::context_parallel::test
