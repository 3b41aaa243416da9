#include "tessera/nn/ops_attention.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <cmath>

#include "tessera/core/attention_blocks.h"
#include "tessera/kernels/dropout.h"
#include "tessera/kernels/layers.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_support.h"

namespace tessera::nn {
namespace {

// [Note: attention in blocks] Heads are processed in groups of G, queries in blocks of
// `block_rows` (sizes: core/attention_blocks.h), and a block sees only the keys up to its own end:
// the scores of a block, [G, rows, keys], stay in the cache between the product that computes them,
// the softmax, and the product that uses them. Backward recomputes them from the saved log-sum-exp.
// It processes the blocks from the last to the first: the last one writes the gradients of all keys
// and values, and the others add to a part of them. With a window, or several documents in a
// sequence, a block sees the keys from the first one that its first query sees: keys outside are
// never multiplied. The gradients of keys and values then start as zeros. Queries and keys may be
// parts of their sequences; queries then may see no key here.
constexpr std::int64_t block_rows = kScoreRows;

// Keys that the queries of one sequence see, and the dropout of their probabilities. Queries and
// keys are numbered from the first one here.
struct Visibility {
  AttentionPart part;
  std::int64_t queries = 0, keys = 0;
  const AttentionOptions* options = nullptr;
  std::int64_t heads = 0;                // heads per sequence
  std::int64_t index = 0;                // index of the group's first head among all sequences'
  std::int64_t window = 0;               // 0: no limit
  const std::int32_t* starts = nullptr;  // start of the document of each position

  // Returns whether each query sees all keys before it.
  bool whole() const { return window == 0 && starts == nullptr; }
  // Returns the range of keys that a query sees: [first, end), empty if first >= end.
  std::int64_t first(std::int64_t query) const {
    const std::int64_t position = part.first_query + query;
    std::int64_t from = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
    if (starts != nullptr) from = std::max<std::int64_t>(from, starts[position]);
    return std::max<std::int64_t>(0, from - part.first_key);
  }
  std::int64_t end(std::int64_t query) const { return std::min(keys, query_as_key(query) + 1); }
  // Returns the number of the key at the position of a query; it may be after the last key.
  std::int64_t query_as_key(std::int64_t query) const {
    return part.first_query - part.first_key + query;
  }
  // Returns the maximum number of keys that a block sees.
  std::int64_t widest() const { return keys_of_block(keys, window); }
};

Visibility visibility_of(const BlockedAttention& in, std::int64_t sequence, std::int64_t index) {
  Visibility visibility{.part = in.part,
                        .queries = in.q.size(1),
                        .keys = in.k.size(1),
                        .options = in.options,
                        .heads = in.q.size(2),
                        .index = index};
  if (in.options == nullptr) return visibility;
  visibility.window = in.options->window;
  if (in.options->document_starts.defined()) {
    const at::Tensor& starts = in.options->document_starts;
    visibility.starts = starts.const_data_ptr<std::int32_t>() + sequence * starts.size(1);
  }
  return visibility;
}

std::int64_t scores_at_once(const Visibility& visibility) {
  return scores_of_block(visibility.queries, visibility.widest());
}

// Queries, keys and values of a group of heads, each [G, T, d].
struct Heads {
  at::Tensor q, k, v;
};

struct Block {
  std::int64_t begin = 0, rows = 0;
  std::int64_t from = 0, keys = 0;  // range of keys that it sees
  std::array<std::int32_t, block_rows> skipped;
};

Block block_at(std::int64_t begin, const Visibility& visibility) {
  Block block;
  block.begin = begin;
  block.rows = std::min(block_rows, visibility.queries - begin);
  const std::int64_t end = visibility.end(begin + block.rows - 1);
  block.from = std::min(visibility.first(begin), end);
  block.keys = end - block.from;
  for (std::int64_t r = 0; !visibility.whole() && r < block.rows; ++r) {
    const std::int64_t first = std::min(visibility.first(begin + r), visibility.end(begin + r));
    block.skipped[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(first - block.from);
  }
  return block;
}

float scale_of(const Heads& in, const Visibility& visibility) {
  if (visibility.options != nullptr && visibility.options->scale > 0) {
    return static_cast<float>(visibility.options->scale);
  }
  return 1.0f / std::sqrt(static_cast<float>(in.q.size(2)));
}

at::Tensor scores_of(const Heads& in, const Block& block, const at::Tensor& scratch) {
  const std::int64_t group = in.q.size(0);
  at::Tensor scores =
      scratch.narrow(0, 0, group * block.rows * block.keys).view({group, block.rows, block.keys});
  bmm_nt_out(scores, in.q.narrow(1, block.begin, block.rows),
             in.k.narrow(1, block.from, block.keys));
  return scores;
}

kernels::CausalRows rows_of(const Heads& in, const Block& block, const Visibility& visibility) {
  return {.type = type_of(in.q),
          .rows = count(block.rows),
          .cols = count(block.keys),
          .first = count(visibility.query_as_key(block.begin) + 1 - block.from),
          .scale = scale_of(in, visibility),
          .skipped = visibility.whole() ? nullptr : block.skipped.data()};
}

// Applies dropout to the probabilities of one head, or to their gradients: [Note: dropout] in
// pass.h.
void drop_probabilities(const at::Tensor& matrix, std::int64_t g, const Block& block,
                        const Visibility& visibility) {
  if (visibility.options == nullptr || visibility.options->dropout.rate == 0) return;
  const Dropout& dropout = visibility.options->dropout;
  const AttentionPart& part = visibility.part;
  const std::int64_t whole = visibility.options->row_tokens;
  const std::int64_t width = whole > 0 ? whole : part.tokens;
  const std::int64_t sample = (visibility.index + g) / visibility.heads;
  const std::int64_t head =
      visibility.options->first_head + (visibility.index + g) % visibility.heads;
  const kernels::Dropout mask = {
      .seed = dropout.seed,
      .stream = kernels::stream_of_sample(
          dropout.stream, dropout.first_sample + static_cast<std::uint64_t>(sample)),
      .rate = dropout.rate,
      .width = count(width)};
  const std::int64_t first_row = head * width + part.first_query + block.begin;
  const at::Tensor rows = matrix.select(0, g);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    kernels::drop(mask, type_of(matrix), static_cast<std::uint64_t>(first_row + r),
                  count(part.first_key + block.from), row_out(rows, r),
                  count(visibility.end(block.begin + r) - block.from));
  }
}

void forward_group(const Heads& in, const at::Tensor& out, float* lse, const at::Tensor& scratch,
                   const Visibility& visibility) {
  const std::int64_t group = in.q.size(0), queries = in.q.size(1);
  for (std::int64_t begin = 0; begin < queries; begin += block_rows) {
    const Block block = block_at(begin, visibility);
    at::Tensor part = out.narrow(1, begin, block.rows);
    if (block.keys == 0) {
      part.zero_();
      for (std::int64_t g = 0; g < group; ++g) {
        std::fill_n(lse + g * queries + begin, block.rows, -INFINITY);
      }
      continue;
    }
    const at::Tensor scores = scores_of(in, block, scratch);
    parallel_for(0, group, grain_of(block.rows * block.keys),
                 [&](std::int64_t from, std::int64_t to) {
                   for (std::int64_t g = from; g < to; ++g) {
                     kernels::softmax_causal_forward(rows_of(in, block, visibility),
                                                     row_out(scores, g), lse + g * queries + begin);
                     drop_probabilities(scores, g, block, visibility);
                   }
                 });
    at::bmm_out(part, scores, in.v.narrow(1, block.from, block.keys));
  }
}

// Computes to[:, from : from + keys] = a · b, or += if not `first`.
void accumulate(const at::Tensor& to, std::int64_t from, const at::Tensor& a, const at::Tensor& b,
                bool first) {
  at::Tensor part = to.narrow(1, from, a.size(1));
  if (first) {
    at::bmm_out(part, a, b);
  } else {
    part.baddbmm_(a, b);
  }
}

// Sums over all keys: lse, and delta = Σ probability · its gradient. delta may be null if all keys
// are here.
struct RowSums {
  const float* lse = nullptr;
  const float* delta = nullptr;
};

void backward_group(const Heads& in, const at::Tensor& dout, const RowSums& sums, const Heads& grad,
                    const at::Tensor& scratch, const at::Tensor& dscratch,
                    const Visibility& visibility) {
  const std::int64_t group = in.q.size(0), queries = in.q.size(1);
  const std::int64_t last = (queries - 1) / block_rows * block_rows;
  // The last block writes the gradients of all keys.
  const bool overwrites = visibility.whole() && visibility.end(queries - 1) == visibility.keys;
  if (!overwrites) {
    grad.k.zero_();
    grad.v.zero_();
  }
  for (std::int64_t begin = last; begin >= 0; begin -= block_rows) {
    const Block block = block_at(begin, visibility);
    at::Tensor dq = grad.q.narrow(1, begin, block.rows);
    if (block.keys == 0) {
      dq.zero_();
      continue;
    }
    const at::Tensor d = dout.narrow(1, begin, block.rows);
    const at::Tensor scores = scores_of(in, block, scratch);
    at::Tensor dscores =
        dscratch.narrow(0, 0, scores.numel()).view({group, block.rows, block.keys});
    bmm_nt_out(dscores, d, in.v.narrow(1, block.from, block.keys));
    parallel_for(0, group, grain_of(block.rows * block.keys),
                 [&](std::int64_t from, std::int64_t to) {
                   for (std::int64_t g = from; g < to; ++g) {
                     const std::int64_t at = g * queries + begin;
                     kernels::CausalRows rows = rows_of(in, block, visibility);
                     if (sums.delta != nullptr) rows.delta = sums.delta + at;
                     drop_probabilities(dscores, g, block, visibility);
                     kernels::softmax_causal_backward(rows, row_out(scores, g), row_out(dscores, g),
                                                      sums.lse + at);
                     drop_probabilities(scores, g, block, visibility);
                   }
                 });
    const bool first = begin == last && overwrites;
    accumulate(grad.v, block.from, scores.transpose(1, 2), d, first);
    accumulate(grad.k, block.from, dscores.transpose(1, 2), in.q.narrow(1, begin, block.rows),
               first);
    at::bmm_out(dq, dscores, in.k.narrow(1, block.from, block.keys));
  }
}

RowSums sums_at(const at::Tensor& lse, const at::Tensor& delta, std::int64_t index) {
  const std::int64_t at = index * lse.size(2);
  return {lse.const_data_ptr<float>() + at,
          delta.defined() ? delta.const_data_ptr<float>() + at : nullptr};
}

at::Tensor scratch_for(const BlockedAttention& in, std::int64_t group,
                       const Visibility& visibility) {
  return at::empty({group * scores_at_once(visibility)}, in.q.options());
}

// For fp32, whose heads are read and written in place. Calls f(b, begin, n) for each group of
// heads.
template <typename F>
void each_group(const BlockedAttention& in, std::int64_t group, F&& f) {
  const std::int64_t heads = in.q.size(2);
  for (std::int64_t b = 0; b < in.q.size(0); ++b) {
    for (std::int64_t begin = 0; begin < heads; begin += group) {
      f(b, begin, std::min(group, heads - begin));
    }
  }
}

// Returns heads [begin, begin + n) of sequence b of [B, T, H, d], as [G, T, d].
at::Tensor heads_of(const at::Tensor& x, std::int64_t b, std::int64_t begin, std::int64_t n) {
  return x.select(0, b).narrow(1, begin, n).transpose(0, 1);
}
Heads heads_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t b,
               std::int64_t begin, std::int64_t n) {
  return {heads_of(q, b, begin, n), heads_of(k, b, begin, n), heads_of(v, b, begin, n)};
}

void forward_in_place(const BlockedAttention& in, const at::Tensor& out, const at::Tensor& lse) {
  const Visibility any = visibility_of(in, 0, 0);
  const std::int64_t group = heads_of_group(any.heads, scores_at_once(any));
  const at::Tensor scratch = scratch_for(in, group, any);
  each_group(in, group, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    const std::int64_t index = b * any.heads + begin;
    forward_group(heads_of(in.q, in.k, in.v, b, begin, n), heads_of(out, b, begin, n),
                  lse.mutable_data_ptr<float>() + index * any.queries, scratch,
                  visibility_of(in, b, index));
  });
}

void backward_in_place(const BlockedAttention& in, const at::Tensor& dout, const at::Tensor& lse,
                       const at::Tensor& delta, const PartialGradients& grad) {
  const Visibility any = visibility_of(in, 0, 0);
  const std::int64_t group = heads_of_group(any.heads, scores_at_once(any));
  const at::Tensor scratch = scratch_for(in, group, any);
  const at::Tensor dscratch = at::empty_like(scratch);
  each_group(in, group, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    const std::int64_t index = b * any.heads + begin;
    backward_group(heads_of(in.q, in.k, in.v, b, begin, n), heads_of(dout, b, begin, n),
                   sums_at(lse, delta, index), heads_of(grad.q, grad.k, grad.v, b, begin, n),
                   scratch, dscratch, visibility_of(in, b, index));
  });
}

// bf16 with oneDNN needs contiguous matrices, and a call costs as much as a small product. So the
// heads of all sequences are gathered, [B·H, T, d], and processed in large groups.
constexpr std::int64_t large_group_elements = 1 << 20;

at::Tensor gathered(const at::Tensor& x) {  // [B, T, H, d]
  return x.transpose(1, 2).contiguous().view({x.size(0) * x.size(2), x.size(1), x.size(3)});
}
Heads gathered_heads(const BlockedAttention& in) {
  return {gathered(in.q), gathered(in.k), gathered(in.v)};
}

// Copies gathered heads to [B, T, H, d].
void scatter_heads(const at::Tensor& x, const at::Tensor& to) {
  to.copy_(x.view({to.size(0), to.size(2), to.size(1), to.size(3)}).transpose(1, 2));
}

// Calls f(index, n, visibility). If sequences have their own documents, a group is within one
// sequence.
template <typename F>
void each_large_group(const BlockedAttention& in, F&& f) {
  const Visibility any = visibility_of(in, 0, 0);
  const std::int64_t batch = in.q.size(0);
  const std::int64_t sequences = any.starts == nullptr ? 1 : batch,
                     all = any.heads * batch / sequences;
  const std::int64_t group = heads_of_group(all, scores_at_once(any), large_group_elements);
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t begin = 0; begin < all; begin += group) {
      const std::int64_t index = s * all + begin;
      f(index, std::min(group, all - begin), visibility_of(in, s, index));
    }
  }
}

Heads some_heads(const Heads& all, std::int64_t index, std::int64_t n) {
  return {all.q.narrow(0, index, n), all.k.narrow(0, index, n), all.v.narrow(0, index, n)};
}

void forward_gathered(const BlockedAttention& in, const at::Tensor& to, const at::Tensor& lse) {
  const Heads x = gathered_heads(in);
  const at::Tensor out = at::empty_like(x.q);
  each_large_group(in, [&](std::int64_t index, std::int64_t n, const Visibility& visibility) {
    forward_group(some_heads(x, index, n), out.narrow(0, index, n),
                  lse.mutable_data_ptr<float>() + index * visibility.queries,
                  scratch_for(in, n, visibility), visibility);
  });
  scatter_heads(out, to);
}

void backward_gathered(const BlockedAttention& in, const at::Tensor& dout, const at::Tensor& lse,
                       const at::Tensor& delta, const PartialGradients& to) {
  const Heads x = gathered_heads(in);
  const at::Tensor d = gathered(dout);
  const Heads grad = {at::empty_like(x.q), at::empty_like(x.k), at::empty_like(x.v)};
  each_large_group(in, [&](std::int64_t index, std::int64_t n, const Visibility& visibility) {
    backward_group(some_heads(x, index, n), d.narrow(0, index, n), sums_at(lse, delta, index),
                   some_heads(grad, index, n), scratch_for(in, n, visibility),
                   scratch_for(in, n, visibility), visibility);
  });
  scatter_heads(grad.q, to.q);
  scatter_heads(grad.k, to.k);
  scatter_heads(grad.v, to.v);
}

// Splits [B, T, 3·H·d] into three tensors [B, T, H, d].
PartialGradients split_heads(const at::Tensor& qkv, std::int64_t heads) {
  const at::Tensor all = qkv.view({qkv.size(0), qkv.size(1), 3, heads, qkv.size(2) / (3 * heads)});
  return {all.select(2, 0), all.select(2, 1), all.select(2, 2)};
}

BlockedAttention whole_attention(const at::Tensor& qkv, std::int64_t heads, bool gather,
                                 const AttentionOptions* options) {
  const auto [q, k, v] = split_heads(qkv, heads);
  return {q, k, v, {.tokens = qkv.size(1)}, options, gather};
}

}  // namespace

void attend_in_blocks(const BlockedAttention& in, const at::Tensor& out, const at::Tensor& lse) {
  in.gather ? forward_gathered(in, out, lse) : forward_in_place(in, out, lse);
}

void attend_in_blocks_backward(const BlockedAttention& in, const at::Tensor& dout,
                               const at::Tensor& lse, const at::Tensor& delta,
                               const PartialGradients& grad) {
  in.gather ? backward_gathered(in, dout, lse, delta, grad)
            : backward_in_place(in, dout, lse, delta, grad);
}

bool gathers_heads(const at::Tensor& qkv) {
  return qkv.scalar_type() == at::kBFloat16 && !multiplies_in_fp32(qkv);
}

std::vector<at::Tensor> attention_forward(const at::Tensor& qkv, std::int64_t heads, bool gather,
                                          const AttentionOptions* options) {
  const std::int64_t batch = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3;
  const at::Tensor lse = at::empty({batch, heads, tokens}, qkv.options().dtype(at::kFloat));
  const at::Tensor x = gather ? qkv : to_fp32(qkv);
  at::Tensor out = at::empty({batch, tokens, width}, x.options());
  attend_in_blocks(whole_attention(x, heads, gather, options), out.unflatten(2, {heads, -1}), lse);
  return {out.scalar_type() == qkv.scalar_type() ? out : to_bf16(out), lse};
}

at::Tensor attention_backward(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                              const at::Tensor& lse, bool gather, const AttentionOptions* options) {
  const at::Tensor x = gather ? qkv : to_fp32(qkv), d = gather ? dout : to_fp32(dout);
  at::Tensor grad = at::empty_like(x);
  attend_in_blocks_backward(whole_attention(x, heads, gather, options), d.unflatten(2, {heads, -1}),
                            lse, {}, split_heads(grad, heads));
  return grad.scalar_type() == qkv.scalar_type() ? grad : to_bf16(grad);
}

}  // namespace tessera::nn
