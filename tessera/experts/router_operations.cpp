// The steps of a router as operations of ATen, which need no copy to the host.

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "tessera/core/philox.h"
#include "tessera/experts/router.h"
#include "tessera/kernels/dropout.h"
#include "tessera/nn/pass.h"

namespace tessera::experts {
namespace {

constexpr std::int64_t kWord = 0xffffffff;
constexpr double kTinySum = 1e-20;  // keeps quotients finite if all scores are 0

// Returns the higher 32 bits of the product of a constant and 32-bit words in int64.
at::Tensor high_word(const at::Tensor& words, std::uint32_t factor) {
  // The product of the halves, because a product of 64 bits would have the wrong sign.
  const at::Tensor low = words.bitwise_and(0xffff) * static_cast<std::int64_t>(factor);
  const at::Tensor high = words.bitwise_right_shift(16) * static_cast<std::int64_t>(factor);
  return (high + low.bitwise_right_shift(16)).bitwise_right_shift(16);
}
at::Tensor low_word(const at::Tensor& words, std::uint32_t factor) {
  return (words * static_cast<std::int64_t>(factor)).bitwise_and(kWord);
}

// Returns Philox::uniform(index) for int64 indices [n] of one stream.
at::Tensor uniforms(std::uint64_t seed, std::uint64_t stream, const at::Tensor& index) {
  const at::Tensor block = index.bitwise_right_shift(2);
  const auto word = [&](std::uint64_t value) {
    return at::zeros_like(block).fill_(static_cast<std::int64_t>(value & kWord));
  };
  std::vector<at::Tensor> c = {block.bitwise_and(kWord), block.bitwise_right_shift(32),
                               word(stream), word(stream >> 32)};
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < philox::rounds; ++round) {
    const std::uint32_t a = philox::multiplier[0], b = philox::multiplier[1];
    c = {high_word(c[2], b).bitwise_xor(c[1]).bitwise_xor(static_cast<std::int64_t>(key0)),
         low_word(c[2], b),
         high_word(c[0], a).bitwise_xor(c[3]).bitwise_xor(static_cast<std::int64_t>(key1)),
         low_word(c[0], a)};
    key0 += philox::weyl[0];
    key1 += philox::weyl[1];
  }
  const at::Tensor of = index.bitwise_and(3).unsqueeze(0);
  const at::Tensor bits = at::stack(c).gather(0, of).squeeze(0);
  return bits.bitwise_right_shift(8).to(at::kFloat) * 0x1p-24;
}

at::Tensor input_by_operations(const at::Tensor& x, const RouterCall& call) {
  const at::ScalarType type = x.is_cpu() ? at::kDouble : at::kFloat;
  const at::Tensor wide = x.to(type);
  if (call.jitter.size == 0) return wide;
  const auto numbers = x.options().dtype(at::kLong);
  const TokenRows& rows = call.rows;
  const at::Tensor first =
      nn::positions_of(rows.part, rows.tokens, numbers).mul_(x.size(1)).unsqueeze(1);
  const at::Tensor index = (first + at::arange(x.size(1), numbers)).view({-1});
  std::vector<at::Tensor> factors;
  for (std::int64_t b = 0; b < rows.rows; ++b) {
    const std::uint64_t sample = call.jitter.first_sample + static_cast<std::uint64_t>(b);
    const at::Tensor u =
        uniforms(call.jitter.seed, kernels::stream_of_sample(call.jitter.stream, sample), index);
    factors.push_back(u.to(at::kDouble).mul_(2).sub_(1).mul_(call.jitter.size).add_(1).to(type));
  }
  return factors.empty() ? wide : wide * at::cat(factors).view(x.sizes());
}

// Returns which tokens are routed, bool [N, 1].
at::Tensor routed_tokens(const at::Tensor& like, const RouterCall& call) {
  const TokenRows& rows = call.rows;
  const at::Tensor positions =
      nn::positions_of(rows.part, rows.tokens, like.options().dtype(at::kLong));
  return positions.lt(rows.row_tokens)
      .unsqueeze(0)
      .expand({rows.rows, rows.tokens})
      .reshape({-1, 1});
}

struct TokenScores {
  at::Tensor lse, softmax, scores, total, probabilities;  // fp64
};
TokenScores scores_of(const at::Tensor& logits, const Experts& experts) {
  const at::Tensor wide = logits.to(at::kDouble);
  TokenScores result;
  result.lse = at::logsumexp(wide, 1, /*keepdim=*/true);
  result.softmax = (wide - result.lse).exp_();
  if (experts.scores == RouterScores::softmax) {
    result.scores = result.probabilities = result.softmax;
    return result;
  }
  result.scores = wide.sigmoid();
  result.total = result.scores.sum(1, /*keepdim=*/true).add_(kTinySum);
  result.probabilities = result.scores / result.total;
  return result;
}

// Returns the numbers of experts as indices, for dropped pairs too. 0 for tokens without experts.
at::Tensor indices_of(const at::Tensor& experts) {
  const at::Tensor wide = experts.to(at::kLong);
  return at::where(wide.lt(0), wide.bitwise_not(), wide).masked_fill_(wide.eq(kNotRouted), 0);
}

at::Tensor choose_by_operations(const at::Tensor& logits, const at::Tensor& bias,
                                const RouterCall& call) {
  const Experts& options = call.experts;
  at::Tensor values = logits;
  if (bias.defined()) values = scores_of(logits, options).scores.to(at::kFloat) + bias;
  // Integers in the order of the values, and then in the reverse order of the experts. Adding 0
  // makes -0 equal to 0.
  const at::Tensor bits = (values + 0.0).view(at::kInt);
  const at::Tensor ordered =
      at::where(bits.lt(0), bits.bitwise_xor(0x7fffffff), bits).to(at::kLong);
  constexpr std::int64_t places = std::int64_t{1} << 20;  // more than any number of experts
  const at::Tensor numbers = at::arange(options.count - 1, -1, -1, ordered.options());
  const at::Tensor keys = ordered * places + numbers;
  const at::Tensor best = std::get<0>(keys.topk(options.per_token, 1, true, /*sorted=*/true));
  const at::Tensor experts = (options.count - 1 - best.bitwise_and(places - 1)).to(at::kInt);
  if (!call.rows.padded()) return experts;
  return experts.masked_fill(routed_tokens(logits, call).logical_not(), kNotRouted);
}

// Returns int64 [rows, chunks, tokens of a chunk, count]: 1 for each pair that is not dropped.
// Those of padding are 0.
at::Tensor pairs_of(const at::Tensor& experts, const RouterCall& call, bool with_dropped) {
  const at::Tensor there = with_dropped ? experts.ne(kNotRouted) : experts.ge(0);
  return at::zeros({experts.size(0), call.experts.count}, experts.options().dtype(at::kLong))
      .scatter_add(1, indices_of(experts), there.to(at::kLong))
      .view({call.rows.rows, call.rows.part.chunks(), call.rows.tokens / call.rows.part.chunks(),
             call.experts.count});
}

at::Tensor count_by_operations(const at::Tensor& experts, const RouterCall& call) {
  return pairs_of(experts, call, true).sum(2);
}

void drop_by_operations(const at::Tensor& experts, const at::Tensor& before, std::int64_t capacity,
                        const RouterCall& call) {
  const at::Tensor place = (pairs_of(experts, call, true).cumsum(2) + before.unsqueeze(2))
                               .view({experts.size(0), call.experts.count})
                               .gather(1, indices_of(experts));
  const at::Tensor beyond = place.gt(capacity).logical_and_(experts.ge(0));
  at::Tensor(experts).copy_(at::where(beyond, experts.bitwise_not(), experts));
}

double factor_of_balance(const RouterCall& call) {
  const auto tokens = static_cast<double>(call.rows.row_tokens);
  return static_cast<double>(call.experts.count) /
         (static_cast<double>(call.experts.per_token) * tokens * tokens);
}

// Returns count_e of the row of each token, fp64 [rows, tokens, count] as [N, count].
at::Tensor counts_of_tokens(const at::Tensor& counts, const RouterCall& call) {
  return counts.to(at::kDouble)
      .unsqueeze(1)
      .expand({call.rows.rows, call.rows.tokens, call.experts.count})
      .reshape({-1, call.experts.count});
}

Weighed weigh_by_operations(const at::Tensor& logits, const at::Tensor& experts,
                            const at::Tensor& counts, const RouterCall& call) {
  const Experts& options = call.experts;
  const TokenScores token = scores_of(logits, options);
  const at::Tensor chosen = token.scores.gather(1, indices_of(experts));
  at::Tensor weights = chosen * options.scale;
  if (options.normalized) weights = weights / (chosen.sum(1, /*keepdim=*/true) + kTinySum);
  Weighed result;
  result.weights = weights.masked_fill_(experts.lt(0), 0).to(at::kFloat);
  const auto wide = token.lse.options();
  const at::Tensor routed = routed_tokens(logits, call);
  const at::Tensor p = token.probabilities;
  const at::Tensor surprise = at::where(p.gt(0), p * p.log(), at::zeros({}, wide));
  const auto sum = [&](const at::Tensor& each) {
    return each.masked_fill(routed.logical_not(), 0).sum().to(at::kDouble);
  };
  std::vector<at::Tensor> sums(kSums, at::zeros({}, wide));
  sums[kDropped] = experts.lt(0).logical_and_(experts.ne(kNotRouted)).sum().to(at::kDouble);
  sums[kRouted] = routed.sum().to(at::kDouble);
  sums[kEntropy] = -sum(surprise);
  sums[kZ] = sum(token.lse.square()) / static_cast<double>(call.rows.row_tokens);
  if (counts.defined()) {
    sums[kBalance] = sum(p * counts_of_tokens(counts, call)) * factor_of_balance(call);
  }
  result.sums = at::stack(sums);
  result.loss = (sums[kBalance] * options.balance_loss + sums[kZ] * options.z_loss).to(at::kFloat);
  return result;
}

at::Tensor backward_by_operations(const at::Tensor& logits, const at::Tensor& experts,
                                  const at::Tensor& counts, const at::Tensor& dweights,
                                  const at::Tensor& dloss, const RouterCall& call) {
  const Experts& options = call.experts;
  const TokenScores token = scores_of(logits, options);
  const at::Tensor routed = routed_tokens(logits, call);
  at::Tensor ds = at::zeros(logits.sizes(), token.lse.options());
  if (dweights.defined()) {
    const at::Tensor index = indices_of(experts);
    at::Tensor d = dweights.to(at::kDouble).masked_fill(experts.lt(0), 0);
    if (options.normalized) {
      const at::Tensor chosen = token.scores.gather(1, index);
      const at::Tensor total = chosen.sum(1, /*keepdim=*/true) + kTinySum;
      d = (d - (d * chosen).sum(1, /*keepdim=*/true) / total) / total;
    }
    ds.scatter_add_(1, index, (d * options.scale).masked_fill(routed.logical_not(), 0));
  }
  if (dloss.defined() && counts.defined()) {
    at::Tensor d = counts_of_tokens(counts, call);
    if (options.scores == RouterScores::sigmoid) {
      d = (d - (d * token.probabilities).sum(1, /*keepdim=*/true)) / token.total;
    }
    ds = ds + d * (dloss.to(at::kDouble) * (options.balance_loss * factor_of_balance(call)));
  }
  at::Tensor dlogits = options.scores == RouterScores::softmax
                           ? token.scores * (ds - (ds * token.scores).sum(1, /*keepdim=*/true))
                           : token.scores * (1 - token.scores) * ds;
  if (dloss.defined() && options.z_loss != 0) {
    const double factor = options.z_loss * 2 / static_cast<double>(call.rows.row_tokens);
    dlogits = dlogits + token.lse * token.softmax * (dloss.to(at::kDouble) * factor);
  }
  return dlogits.masked_fill(routed.logical_not(), 0).to(at::kFloat);
}

}  // namespace

const RouterSteps kRouterOperations = {input_by_operations, choose_by_operations,
                                       count_by_operations, drop_by_operations,
                                       weigh_by_operations, backward_by_operations};

}  // namespace tessera::experts
