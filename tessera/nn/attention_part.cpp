#include "tessera/nn/attention_part.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_attention.h"
#include "tessera/nn/ops_support.h"

namespace tessera::nn {
namespace {

void check_part(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const AttentionPart& part, const AttentionOptions& options) {
  const bool shapes = q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() &&
                      q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(2) > 0 &&
                      q.size(2) % k.size(2) == 0;
  if (!shapes || q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type()) {
    throw UsageError(tessera::str(
        "Attention of a part: queries ", q.sizes(), ", keys ", k.sizes(), " and values ", v.sizes(),
        ". They must have one type and be [batch, tokens, heads, head width], and "
        "the heads a multiple of the KV heads."));
  }
  const std::int64_t last_query = part.first_query + q.size(1),
                     last_key = part.first_key + k.size(1);
  if (part.first_key < 0 || part.first_key > part.first_query || last_query > part.tokens ||
      last_key > part.tokens) {
    throw UsageError(
        tessera::str("Attention of a part: queries at [", part.first_query, ", ", last_query,
                     ") and keys at [", part.first_key, ", ", last_key, ") of ", part.tokens,
                     " tokens. They must be within the sequence, and the first key not after "
                     "the first query."));
  }
  const at::Tensor& starts = options.document_starts;
  if (starts.defined() &&
      (starts.scalar_type() != at::kInt || starts.dim() != 2 || starts.size(0) != q.size(0) ||
       starts.size(1) != part.tokens || starts.device() != q.device() || !starts.is_contiguous())) {
    throw UsageError(tessera::str("Attention of a part: document starts are ", starts.sizes(),
                                  " of type ", c10::toString(starts.scalar_type()),
                                  ". They must be contiguous int32 [", q.size(0), ", ", part.tokens,
                                  "]."));
  }
}

// Repeats [B, T, KV heads, d] for the heads that use them.
at::Tensor repeat_kv_heads(const at::Tensor& x, std::int64_t heads) {
  return x.size(2) == heads ? x : x.repeat_interleave(heads / x.size(2), 2);
}
// Sums the gradients of the repetitions.
at::Tensor sum_kv_heads(const at::Tensor& grad, std::int64_t kv_heads) {
  if (grad.size(2) == kv_heads) return grad;
  const bool half = grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf;
  return grad.unflatten(2, {kv_heads, -1}).sum(3, false, half ? at::kFloat : grad.scalar_type());
}

BlockedAttention blocked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const AttentionPart& part, const AttentionOptions& options) {
  const bool gather = gathers_heads(q);
  const auto wide = [&](const at::Tensor& x) { return gather ? x : to_fp32(x); };
  return {wide(q),
          repeat_kv_heads(wide(k), q.size(2)),
          repeat_kv_heads(wide(v), q.size(2)),
          part,
          &options,
          gather};
}

// Operands of the ATen version: [B, H, T, d] in the type in which it computes.
struct Masked {
  at::Tensor q, k, v;
  at::Tensor seen;     // bool [B or 1, 1, Tq, Tk]
  at::Tensor dropped;  // factors of the probabilities, [B, H, Tq, Tk]; undefined without dropout
  double scale = 1, cap = 0;

  // Returns exp(score - lse), 0 where masked.
  at::Tensor probabilities(const at::Tensor& lse) const {
    // A row that sees no key has an lse of -infinity.
    const at::Tensor finite = lse.masked_fill(lse.isinf(), 0).unsqueeze(3);
    return scores().sub_(finite).exp_();
  }
  at::Tensor scores() const { return all_scores().masked_fill_(seen.logical_not(), -INFINITY); }
  // Returns the scores before the mask.
  at::Tensor all_scores() const {
    const at::Tensor products = at::matmul(q, k.transpose(2, 3)).mul_(scale);
    return cap > 0 ? products.div_(cap).tanh_().mul_(cap) : products;
  }
  at::Tensor drop(const at::Tensor& x) const { return dropped.defined() ? x * dropped : x; }
};

at::ScalarType masked_type_of(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The rows of a head are consecutive in the numbering of [Note: dropout] in pass.h.
at::Tensor dropout_factors(const at::Tensor& q, std::int64_t keys, const AttentionPart& part,
                           const AttentionOptions& options) {
  std::vector<at::Tensor> heads;
  const at::Tensor ones = at::ones({q.size(0), q.size(1), keys}, q.options().dtype(at::kFloat));
  for (std::int64_t head = 0; head < q.size(2); ++head) {
    const std::int64_t width = options.row_tokens > 0 ? options.row_tokens : part.tokens;
    const std::int64_t first = (options.first_head + head) * width + part.first_query;
    heads.push_back(
        dropout(ones, options.dropout, {{0, first, ones.size(1)}}, part.first_key, width));
  }
  return at::stack(heads, 1);
}

Masked masked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const AttentionPart& part, const AttentionOptions& options) {
  const at::ScalarType type = masked_type_of(q);
  const auto split = [&](const at::Tensor& x) {
    return repeat_kv_heads(x, q.size(2)).transpose(1, 2).to(type);
  };
  Masked in;
  in.q = split(q), in.k = split(k), in.v = split(v);
  in.seen = attention_mask(options, part, q.size(1), k.size(1), q.device());
  in.scale = options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  in.cap = options.cap;
  if (options.dropout.rate > 0) {
    in.dropped = dropout_factors(q, k.size(1), part, options).to(type);
  }
  return in;
}

// Capped scores have no kernel. ATen's operations run for blocks of queries, whose scores are
// temporaries of a bounded size: no matrix for all queries.
constexpr std::int64_t kCappedRows = 128;

// Calls f(begin, rows, part) for blocks of queries, at least once.
template <typename F>
void each_capped_block(std::int64_t queries, const AttentionPart& part, F&& f) {
  for (std::int64_t begin = 0; begin == 0 || begin < queries; begin += kCappedRows) {
    AttentionPart block = part;
    block.first_query += begin;
    f(begin, std::min(kCappedRows, queries - begin), block);
  }
}

PartialAttention capped_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionPart& part, const AttentionOptions& options) {
  std::vector<at::Tensor> outs, lses;
  each_capped_block(q.size(1), part,
                    [&](std::int64_t begin, std::int64_t rows, const AttentionPart& block) {
                      const auto result =
                          masked_attention_forward(q.narrow(1, begin, rows), k, v, block, options);
                      outs.push_back(result.out);
                      lses.push_back(result.lse);
                    });
  return {at::cat(outs, 1), at::cat(lses, 2)};
}

PartialGradients capped_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& dout, const at::Tensor& lse,
                                 const at::Tensor& delta, const AttentionPart& part,
                                 const AttentionOptions& options) {
  std::vector<at::Tensor> queries;
  PartialGradients sum;
  each_capped_block(q.size(1), part,
                    [&](std::int64_t begin, std::int64_t rows, const AttentionPart& block) {
                      const auto grad = masked_attention_backward(
                          q.narrow(1, begin, rows), k, v, dout.narrow(1, begin, rows),
                          lse.narrow(2, begin, rows), delta.narrow(2, begin, rows), block, options);
                      queries.push_back(grad.q);
                      sum.k = begin == 0 ? grad.k : sum.k + grad.k;
                      sum.v = begin == 0 ? grad.v : sum.v + grad.v;
                    });
  sum.q = at::cat(queries, 1);
  return sum;
}

}  // namespace

bool sees_keys(const AttentionPart& part, std::int64_t queries, std::int64_t keys,
               const AttentionOptions& options) {
  if (queries == 0 || keys == 0) return false;
  const std::int64_t last_key = part.first_key + keys - 1;
  if (last_key >= part.first_query) return true;  // each query sees the key at its own position
  // No other query sees farther back than the first one.
  if (options.window > 0 && last_key <= part.first_query - options.window) return false;
  const at::Tensor& starts = options.document_starts;
  return !starts.defined() || starts.size(0) == 0 ||
         starts.select(1, part.first_query).min().item<std::int32_t>() <= last_key;
}

PartialAttention masked_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionPart& part,
                                          const AttentionOptions& options) {
  check_part(q, k, v, part, options);
  const Masked in = masked(q, k, v, part, options);
  const at::Tensor lse = at::logsumexp(in.scores(), {3});
  const at::Tensor out = at::matmul(in.drop(in.probabilities(lse)), in.v);
  return {out.transpose(1, 2).contiguous(), lse};
}

PartialGradients masked_attention_backward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const at::Tensor& dout,
                                           const at::Tensor& lse, const at::Tensor& delta,
                                           const AttentionPart& part,
                                           const AttentionOptions& options) {
  check_part(q, k, v, part, options);
  const Masked in = masked(q, k, v, part, options);
  const at::Tensor d = dout.transpose(1, 2).to(in.q.scalar_type());
  const at::Tensor p = in.probabilities(lse);
  const at::Tensor dp = in.drop(at::matmul(d, in.v.transpose(2, 3)));
  const at::Tensor dscores = (dp - delta.unsqueeze(3)).mul_(p).mul_(in.scale);
  // The derivative of c · tanh(s / c) is 1 - tanh²(s / c).
  if (in.cap > 0) dscores.mul_(in.all_scores().div_(in.cap).square_().neg_().add_(1));
  const at::Tensor dq = at::matmul(dscores, in.k);
  const at::Tensor dk = at::matmul(dscores.transpose(2, 3), in.q);
  const at::Tensor dv = at::matmul(in.drop(p).transpose(2, 3), d);
  return {dq.transpose(1, 2), sum_kv_heads(dk.transpose(1, 2), k.size(2)),
          sum_kv_heads(dv.transpose(1, 2), k.size(2))};
}

PartialAttention attention_part_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const AttentionPart& part,
                                        const AttentionOptions& options) {
  check_part(q, k, v, part, options);
  if (options.cap != 0) return capped_forward(q, k, v, part, options);
  if (!has_cpu_kernel(q) || q.numel() == 0 || k.numel() == 0) {
    return masked_attention_forward(q, k, v, part, options);
  }
  const BlockedAttention in = blocked(q, k, v, part, options);
  PartialAttention result = {
      at::empty(q.sizes(), in.q.options()),
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  attend_in_blocks(in, result.out, result.lse);
  return result;
}

PartialGradients attention_part_backward(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& dout,
                                         const at::Tensor& lse, const at::Tensor& delta,
                                         const AttentionPart& part,
                                         const AttentionOptions& options) {
  check_part(q, k, v, part, options);
  if (options.cap != 0) return capped_backward(q, k, v, dout, lse, delta, part, options);
  if (!has_cpu_kernel(q) || q.numel() == 0 || k.numel() == 0) {
    return masked_attention_backward(q, k, v, dout, lse, delta, part, options);
  }
  const BlockedAttention in = blocked(q, k, v, part, options);
  const PartialGradients grad = {at::empty(in.q.sizes(), in.q.options()),
                                 at::empty(in.k.sizes(), in.k.options()),
                                 at::empty(in.v.sizes(), in.v.options())};
  attend_in_blocks_backward(in, in.gather ? dout : to_fp32(dout), lse.contiguous(),
                            delta.contiguous(), grad);
  return {grad.q, sum_kv_heads(grad.k, k.size(2)), sum_kv_heads(grad.v, k.size(2))};
}

}  // namespace tessera::nn
