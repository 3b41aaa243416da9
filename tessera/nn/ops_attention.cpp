#include "tessera/nn/ops_attention.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <cmath>

#include "tessera/kernels/dropout.h"
#include "tessera/kernels/layers.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_support.h"

namespace tessera::nn {
namespace {

// [Note: attention in blocks] Heads are processed in groups of G, queries in blocks of
// `block_rows`, and a block sees only the keys up to its own end: the scores of a block, [G, rows,
// keys], stay in the cache between the product that computes them, the softmax, and the product
// that uses them. Backward recomputes them from the saved log-sum-exp. It processes the blocks from
// the last to the first: the last one writes the gradients of all keys and values, and the others
// add to a part of them. With a window, or several documents in a sequence, a block sees the keys
// from the first one that its first query sees: keys outside are never multiplied. The gradients of
// keys and values then start as zeros.
constexpr std::int64_t block_rows = 128;
constexpr std::int64_t group_elements = 1 << 17;  // number of scores; a group has at least one head

// Keys that the queries of one sequence see, and the dropout of their probabilities.
struct Visibility {
  std::int64_t window = 0;
  const std::int32_t* starts = nullptr;  // start of each token's document
  const AttentionOptions* options = nullptr;
  std::int64_t heads = 0;  // heads per sequence
  std::int64_t index = 0;  // index of the group's first head among those of all sequences

  bool whole() const { return window == 0 && starts == nullptr; }
  std::int64_t first(std::int64_t token) const {
    const std::int64_t from = window > 0 ? std::max<std::int64_t>(0, token - window + 1) : 0;
    return starts == nullptr ? from : std::max<std::int64_t>(from, starts[token]);
  }
  // Returns the maximum number of keys that a block sees.
  std::int64_t widest(std::int64_t tokens) const {
    return window > 0 ? std::min(tokens, window + block_rows) : tokens;
  }
};

Visibility visibility_of(const AttentionOptions* options, std::int64_t heads, std::int64_t sequence,
                         std::int64_t index) {
  Visibility visibility{.options = options, .heads = heads, .index = index};
  if (options == nullptr) return visibility;
  visibility.window = options->window;
  if (options->document_starts.defined()) {
    const at::Tensor& starts = options->document_starts;
    visibility.starts = starts.const_data_ptr<std::int32_t>() + sequence * starts.size(1);
  }
  return visibility;
}

std::int64_t scores_at_once(std::int64_t tokens, const Visibility& visibility) {
  return std::min(block_rows, tokens) * visibility.widest(tokens);
}
std::int64_t group_size(std::int64_t heads, std::int64_t tokens, const Visibility& visibility) {
  return std::clamp<std::int64_t>(group_elements / scores_at_once(tokens, visibility), 1, heads);
}

// Queries, keys and values of a group of heads, each [G, T, d].
struct Heads {
  at::Tensor q, k, v;
};

struct Block {
  std::int64_t begin, rows;
  std::int64_t from, keys;  // range of keys that it sees
  std::array<std::int32_t, block_rows> skipped;
};

Block block_at(std::int64_t begin, std::int64_t tokens, const Visibility& visibility) {
  Block block{begin, std::min(block_rows, tokens - begin), visibility.first(begin), 0, {}};
  block.keys = begin + block.rows - block.from;
  for (std::int64_t r = 0; !visibility.whole() && r < block.rows; ++r) {
    block.skipped[static_cast<std::size_t>(r)] =
        static_cast<std::int32_t>(visibility.first(begin + r) - block.from);
  }
  return block;
}

float scale_of(const Heads& in) { return 1.0f / std::sqrt(static_cast<float>(in.q.size(2))); }

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
          .first = count(block.begin + 1 - block.from),
          .scale = scale_of(in),
          .skipped = visibility.whole() ? nullptr : block.skipped.data()};
}

// Applies dropout to the probabilities of one head, or to their gradients: [Note: dropout] in
// pass.h.
void drop_probabilities(const at::Tensor& matrix, std::int64_t g, const Block& block,
                        const Visibility& visibility, std::int64_t tokens) {
  if (visibility.options == nullptr || visibility.options->dropout.rate == 0) return;
  const Dropout& dropout = visibility.options->dropout;
  const std::int64_t sample = (visibility.index + g) / visibility.heads;
  const std::int64_t head =
      visibility.options->first_head + (visibility.index + g) % visibility.heads;
  const kernels::Dropout mask = {
      .seed = dropout.seed,
      .stream = kernels::stream_of_sample(
          dropout.stream, dropout.first_sample + static_cast<std::uint64_t>(sample)),
      .rate = dropout.rate,
      .width = count(tokens)};
  const at::Tensor rows = matrix.select(0, g);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    kernels::drop(mask, type_of(matrix),
                  static_cast<std::uint64_t>(head * tokens + block.begin + r), count(block.from),
                  row_out(rows, r), count(block.begin + r + 1 - block.from));
  }
}

void forward_group(const Heads& in, const at::Tensor& out, float* lse, const at::Tensor& scratch,
                   const Visibility& visibility) {
  const std::int64_t group = in.q.size(0), tokens = in.q.size(1);
  for (std::int64_t begin = 0; begin < tokens; begin += block_rows) {
    const Block block = block_at(begin, tokens, visibility);
    const at::Tensor scores = scores_of(in, block, scratch);
    parallel_for(0, group, grain_of(block.rows * block.keys),
                 [&](std::int64_t from, std::int64_t to) {
                   for (std::int64_t g = from; g < to; ++g) {
                     kernels::softmax_causal_forward(rows_of(in, block, visibility),
                                                     row_out(scores, g), lse + g * tokens + begin);
                     drop_probabilities(scores, g, block, visibility, tokens);
                   }
                 });
    at::Tensor part = out.narrow(1, begin, block.rows);
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

void backward_group(const Heads& in, const at::Tensor& dout, const float* lse, const Heads& grad,
                    const at::Tensor& scratch, const at::Tensor& dscratch,
                    const Visibility& visibility) {
  const std::int64_t group = in.q.size(0), tokens = in.q.size(1);
  const std::int64_t last = (tokens - 1) / block_rows * block_rows;
  if (!visibility.whole()) {
    grad.k.zero_();
    grad.v.zero_();
  }
  for (std::int64_t begin = last; begin >= 0; begin -= block_rows) {
    const Block block = block_at(begin, tokens, visibility);
    const at::Tensor d = dout.narrow(1, begin, block.rows);
    const at::Tensor scores = scores_of(in, block, scratch);
    at::Tensor dscores =
        dscratch.narrow(0, 0, scores.numel()).view({group, block.rows, block.keys});
    bmm_nt_out(dscores, d, in.v.narrow(1, block.from, block.keys));
    parallel_for(
        0, group, grain_of(block.rows * block.keys), [&](std::int64_t from, std::int64_t to) {
          for (std::int64_t g = from; g < to; ++g) {
            drop_probabilities(dscores, g, block, visibility, tokens);
            kernels::softmax_causal_backward(rows_of(in, block, visibility), row_out(scores, g),
                                             row_out(dscores, g), lse + g * tokens + begin);
            drop_probabilities(scores, g, block, visibility, tokens);
          }
        });
    const bool first = begin == last && visibility.whole();
    accumulate(grad.v, block.from, scores.transpose(1, 2), d, first);
    accumulate(grad.k, block.from, dscores.transpose(1, 2), in.q.narrow(1, begin, block.rows),
               first);
    at::Tensor dq = grad.q.narrow(1, begin, block.rows);
    at::bmm_out(dq, dscores, in.k.narrow(1, block.from, block.keys));
  }
}

// Returns heads [begin, begin + n) of one sequence in a [T, parts·H·d] matrix, as [G, T, d].
at::Tensor heads_of(const at::Tensor& matrix, std::int64_t part, std::int64_t parts,
                    std::int64_t heads, std::int64_t begin, std::int64_t n) {
  const std::int64_t dim = matrix.size(1) / (parts * heads);
  return matrix.view({matrix.size(0), parts, heads, dim})
      .select(1, part)
      .narrow(1, begin, n)
      .transpose(0, 1);
}

// For fp32, whose heads are read and written in place. Calls f(b, begin, n) for each group of
// heads.
template <typename F>
void each_group(const at::Tensor& qkv, std::int64_t heads, std::int64_t group, F&& f) {
  for (std::int64_t b = 0; b < qkv.size(0); ++b) {
    for (std::int64_t begin = 0; begin < heads; begin += group) {
      f(b, begin, std::min(group, heads - begin));
    }
  }
}

Heads split(const at::Tensor& matrix, std::int64_t heads, std::int64_t begin, std::int64_t n) {
  return {heads_of(matrix, 0, 3, heads, begin, n), heads_of(matrix, 1, 3, heads, begin, n),
          heads_of(matrix, 2, 3, heads, begin, n)};
}

at::Tensor scratch_for(const at::Tensor& qkv, std::int64_t group, const Visibility& visibility) {
  return at::empty({group * scores_at_once(qkv.size(1), visibility)}, qkv.options());
}

void forward_in_place(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& out,
                      const at::Tensor& lse, const AttentionOptions* options) {
  const Visibility any = visibility_of(options, heads, 0, 0);
  const std::int64_t group = group_size(heads, qkv.size(1), any);
  const at::Tensor scratch = scratch_for(qkv, group, any);
  each_group(qkv, heads, group, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    forward_group(split(qkv.select(0, b), heads, begin, n),
                  heads_of(out.select(0, b), 0, 1, heads, begin, n),
                  lse.mutable_data_ptr<float>() + (b * heads + begin) * qkv.size(1), scratch,
                  visibility_of(options, heads, b, b * heads + begin));
  });
}

void backward_in_place(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                       const at::Tensor& lse, const at::Tensor& dqkv,
                       const AttentionOptions* options) {
  const Visibility any = visibility_of(options, heads, 0, 0);
  const std::int64_t group = group_size(heads, qkv.size(1), any);
  const at::Tensor scratch = scratch_for(qkv, group, any);
  const at::Tensor dscratch = at::empty_like(scratch);
  each_group(qkv, heads, group, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    backward_group(split(qkv.select(0, b), heads, begin, n),
                   heads_of(dout.select(0, b), 0, 1, heads, begin, n),
                   lse.const_data_ptr<float>() + (b * heads + begin) * qkv.size(1),
                   split(dqkv.select(0, b), heads, begin, n), scratch, dscratch,
                   visibility_of(options, heads, b, b * heads + begin));
  });
}

// bf16 with oneDNN needs contiguous matrices, and a call costs as much as a small product. So the
// heads of all sequences are gathered, [parts, B·H, T, d], and processed in large groups.
constexpr std::int64_t large_group_elements = 1 << 20;

at::Tensor gathered(const at::Tensor& x, std::int64_t parts, std::int64_t heads) {
  const std::int64_t dim = x.size(2) / (parts * heads);
  return x.view({x.size(0), x.size(1), parts, heads, dim})
      .permute({2, 0, 3, 1, 4})
      .contiguous()
      .view({parts, x.size(0) * heads, x.size(1), dim});
}

at::Tensor scattered(const at::Tensor& x, std::int64_t batch) {  // [parts, B·H, T, d]
  const std::int64_t parts = x.size(0), heads = x.size(1) / batch, tokens = x.size(2);
  return x.view({parts, batch, heads, tokens, x.size(3)})
      .permute({1, 3, 0, 2, 4})
      .contiguous()
      .view({batch, tokens, parts * heads * x.size(3)});
}

// Calls f(begin, n, visibility). If sequences have their own documents, a group is within one
// sequence.
template <typename F>
void each_large_group(const at::Tensor& qkv, std::int64_t heads, const AttentionOptions* options,
                      F&& f) {
  const std::int64_t batch = qkv.size(0);
  const Visibility any = visibility_of(options, heads, 0, 0);
  const std::int64_t sequences = any.starts == nullptr ? 1 : batch, all = heads * batch / sequences;
  const std::int64_t group =
      std::clamp<std::int64_t>(large_group_elements / scores_at_once(qkv.size(1), any), 1, all);
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t begin = 0; begin < all; begin += group) {
      const std::int64_t index = s * all + begin;
      f(index, std::min(group, all - begin), visibility_of(options, heads, s, index));
    }
  }
}

Heads part_of(const at::Tensor& x, std::int64_t begin, std::int64_t n) {
  return {x[0].narrow(0, begin, n), x[1].narrow(0, begin, n), x[2].narrow(0, begin, n)};
}

at::Tensor forward_gathered(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& lse,
                            const AttentionOptions* options) {
  const at::Tensor x = gathered(qkv, 3, heads);
  const std::int64_t tokens = qkv.size(1);
  at::Tensor out = at::empty({1, x.size(1), tokens, x.size(3)}, x.options());
  each_large_group(qkv, heads, options,
                   [&](std::int64_t begin, std::int64_t n, const Visibility& visibility) {
                     forward_group(part_of(x, begin, n), out[0].narrow(0, begin, n),
                                   lse.mutable_data_ptr<float>() + begin * tokens,
                                   scratch_for(qkv, n, visibility), visibility);
                   });
  return scattered(out, qkv.size(0));
}

at::Tensor backward_gathered(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                             const at::Tensor& lse, const AttentionOptions* options) {
  const at::Tensor x = gathered(qkv, 3, heads), d = gathered(dout, 1, heads)[0];
  at::Tensor grad = at::empty_like(x);
  const std::int64_t tokens = qkv.size(1);
  each_large_group(qkv, heads, options,
                   [&](std::int64_t begin, std::int64_t n, const Visibility& visibility) {
                     backward_group(part_of(x, begin, n), d.narrow(0, begin, n),
                                    lse.const_data_ptr<float>() + begin * tokens,
                                    part_of(grad, begin, n), scratch_for(qkv, n, visibility),
                                    scratch_for(qkv, n, visibility), visibility);
                   });
  return scattered(grad, qkv.size(0));
}

}  // namespace

bool gathers_heads(const at::Tensor& qkv) {
  return qkv.scalar_type() == at::kBFloat16 && !multiplies_in_fp32(qkv);
}

std::vector<at::Tensor> attention_forward(const at::Tensor& qkv, std::int64_t heads, bool gather,
                                          const AttentionOptions* options) {
  const std::int64_t batch = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3;
  const at::Tensor lse = at::empty({batch, heads, tokens}, qkv.options().dtype(at::kFloat));
  if (gather) return {forward_gathered(qkv, heads, lse, options), lse};
  const at::Tensor x = to_fp32(qkv);
  at::Tensor out = at::empty({batch, tokens, width}, x.options());
  forward_in_place(x, heads, out, lse, options);
  return {qkv.scalar_type() == at::kFloat ? out : to_bf16(out), lse};
}

at::Tensor attention_backward(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                              const at::Tensor& lse, bool gather, const AttentionOptions* options) {
  if (gather) return backward_gathered(qkv, heads, dout, lse, options);
  const at::Tensor x = to_fp32(qkv);
  at::Tensor grad = at::empty_like(x);
  backward_in_place(x, heads, to_fp32(dout), lse, grad, options);
  return qkv.scalar_type() == at::kFloat ? grad : to_bf16(grad);
}

}  // namespace tessera::nn
