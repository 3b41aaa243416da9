#include "tessera/nn/ops_attention.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/layers.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/recompute.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// [Note: attention in blocks] Heads are taken in groups of G, queries in blocks of `block_rows`,
// and a block sees only the keys up to its own end: the scores of a block, [G, rows, keys], stay in
// the cache between the product that makes them, the softmax, and the product that uses them.
// Backward makes them again from the saved log-sum-exp. Going through the blocks from the last, the
// first one writes the gradients of all keys and values, and the others add to a part of them.
constexpr std::int64_t block_rows = 128;
constexpr std::int64_t group_elements = 1 << 17;  // of scores, at least one head

std::int64_t group_size(std::int64_t heads, std::int64_t tokens) {
  const std::int64_t one = std::min(block_rows, tokens) * tokens;
  return std::clamp<std::int64_t>(group_elements / one, 1, heads);
}

// Of some heads, each [G, T, d]; lse is the place of [G, T].
struct Heads {
  at::Tensor q, k, v;
};

struct Block {
  std::int64_t begin, rows, keys;
};

Block block_at(std::int64_t begin, std::int64_t tokens) {
  const std::int64_t rows = std::min(block_rows, tokens - begin);
  return {begin, rows, begin + rows};
}

float scale_of(const Heads& in) { return 1.0f / std::sqrt(static_cast<float>(in.q.size(2))); }

at::Tensor scores_of(const Heads& in, const Block& block, const at::Tensor& scratch) {
  const std::int64_t group = in.q.size(0);
  at::Tensor scores =
      scratch.narrow(0, 0, group * block.rows * block.keys).view({group, block.rows, block.keys});
  bmm_nt_out(scores, in.q.narrow(1, block.begin, block.rows), in.k.narrow(1, 0, block.keys));
  return scores;
}

kernels::CausalRows rows_of(const Heads& in, const Block& block) {
  return {.type = type_of(in.q),
          .rows = count(block.rows),
          .cols = count(block.keys),
          .first = count(block.begin + 1),
          .scale = scale_of(in)};
}

void forward_group(const Heads& in, const at::Tensor& out, float* lse, const at::Tensor& scratch) {
  const std::int64_t group = in.q.size(0), tokens = in.q.size(1);
  for (std::int64_t begin = 0; begin < tokens; begin += block_rows) {
    const Block block = block_at(begin, tokens);
    const at::Tensor scores = scores_of(in, block, scratch);
    at::parallel_for(0, group, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t g = from; g < to; ++g) {
        kernels::softmax_causal_forward(rows_of(in, block), row_out(scores, g),
                                        lse + g * tokens + begin);
      }
    });
    at::Tensor part = out.narrow(1, begin, block.rows);
    at::bmm_out(part, scores, in.v.narrow(1, 0, block.keys));
  }
}

// to[:, :keys] = a · b, or += if not the first time.
void accumulate(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, bool first) {
  at::Tensor part = to.narrow(1, 0, a.size(1));
  if (first) {
    at::bmm_out(part, a, b);
  } else {
    part.baddbmm_(a, b);
  }
}

void backward_group(const Heads& in, const at::Tensor& dout, const float* lse, const Heads& grad,
                    const at::Tensor& scratch, const at::Tensor& dscratch) {
  const std::int64_t group = in.q.size(0), tokens = in.q.size(1);
  const std::int64_t last = (tokens - 1) / block_rows * block_rows;
  for (std::int64_t begin = last; begin >= 0; begin -= block_rows) {
    const Block block = block_at(begin, tokens);
    const at::Tensor d = dout.narrow(1, begin, block.rows);
    const at::Tensor scores = scores_of(in, block, scratch);
    at::Tensor dscores =
        dscratch.narrow(0, 0, scores.numel()).view({group, block.rows, block.keys});
    bmm_nt_out(dscores, d, in.v.narrow(1, 0, block.keys));
    at::parallel_for(0, group, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t g = from; g < to; ++g) {
        kernels::softmax_causal_backward(rows_of(in, block), row_out(scores, g),
                                         row_out(dscores, g), lse + g * tokens + begin);
      }
    });
    const bool first = begin == last;
    accumulate(grad.v, scores.transpose(1, 2), d, first);
    accumulate(grad.k, dscores.transpose(1, 2), in.q.narrow(1, begin, block.rows), first);
    at::Tensor dq = grad.q.narrow(1, begin, block.rows);
    at::bmm_out(dq, dscores, in.k.narrow(1, 0, block.keys));
  }
}

// Some heads of one sequence in a [T, parts·H·d] matrix, as [G, T, d].
at::Tensor heads_of(const at::Tensor& matrix, std::int64_t part, std::int64_t parts,
                    std::int64_t heads, std::int64_t begin, std::int64_t n) {
  const std::int64_t dim = matrix.size(1) / (parts * heads);
  return matrix.view({matrix.size(0), parts, heads, dim})
      .select(1, part)
      .narrow(1, begin, n)
      .transpose(0, 1);
}

// fp32: the heads are read and written where they lie. f(heads' group, b, begin, n).
template <typename F>
void each_group(const at::Tensor& qkv, std::int64_t heads, F&& f) {
  const std::int64_t group = group_size(heads, qkv.size(1));
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

at::Tensor scratch_for(const at::Tensor& qkv, std::int64_t group) {
  const std::int64_t tokens = qkv.size(1);
  return at::empty({group * std::min(block_rows, tokens) * tokens}, qkv.options());
}

void forward_in_place(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& out,
                      const at::Tensor& lse) {
  const at::Tensor scratch = scratch_for(qkv, group_size(heads, qkv.size(1)));
  each_group(qkv, heads, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    forward_group(split(qkv.select(0, b), heads, begin, n),
                  heads_of(out.select(0, b), 0, 1, heads, begin, n),
                  lse.mutable_data_ptr<float>() + (b * heads + begin) * qkv.size(1), scratch);
  });
}

void backward_in_place(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                       const at::Tensor& lse, const at::Tensor& dqkv) {
  const at::Tensor scratch = scratch_for(qkv, group_size(heads, qkv.size(1)));
  const at::Tensor dscratch = at::empty_like(scratch);
  each_group(qkv, heads, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    backward_group(split(qkv.select(0, b), heads, begin, n),
                   heads_of(dout.select(0, b), 0, 1, heads, begin, n),
                   lse.const_data_ptr<float>() + (b * heads + begin) * qkv.size(1),
                   split(dqkv.select(0, b), heads, begin, n), scratch, dscratch);
  });
}

// bf16 through oneDNN: it wants whole matrices, and a call costs as much as a small product. So the
// heads of all sequences are brought together, [parts, B·H, T, d], and taken in large groups.
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

template <typename F>
void each_large_group(std::int64_t all, std::int64_t tokens, F&& f) {
  const std::int64_t one = std::min(block_rows, tokens) * tokens;
  const std::int64_t group = std::clamp<std::int64_t>(large_group_elements / one, 1, all);
  for (std::int64_t begin = 0; begin < all; begin += group) f(begin, std::min(group, all - begin));
}

Heads part_of(const at::Tensor& x, std::int64_t begin, std::int64_t n) {
  return {x[0].narrow(0, begin, n), x[1].narrow(0, begin, n), x[2].narrow(0, begin, n)};
}

at::Tensor forward_gathered(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& lse) {
  const at::Tensor x = gathered(qkv, 3, heads);
  const std::int64_t tokens = qkv.size(1);
  at::Tensor out = at::empty({1, x.size(1), tokens, x.size(3)}, x.options());
  each_large_group(x.size(1), tokens, [&](std::int64_t begin, std::int64_t n) {
    forward_group(part_of(x, begin, n), out[0].narrow(0, begin, n),
                  lse.mutable_data_ptr<float>() + begin * tokens, scratch_for(qkv, n));
  });
  return scattered(out, qkv.size(0));
}

at::Tensor backward_gathered(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                             const at::Tensor& lse) {
  const at::Tensor x = gathered(qkv, 3, heads), d = gathered(dout, 1, heads)[0];
  at::Tensor grad = at::empty_like(x);
  const std::int64_t tokens = qkv.size(1);
  each_large_group(x.size(1), tokens, [&](std::int64_t begin, std::int64_t n) {
    backward_group(part_of(x, begin, n), d.narrow(0, begin, n),
                   lse.const_data_ptr<float>() + begin * tokens, part_of(grad, begin, n),
                   scratch_for(qkv, n), scratch_for(qkv, n));
  });
  return scattered(grad, qkv.size(0));
}

}  // namespace

bool gathers_heads(const at::Tensor& qkv) {
  return qkv.scalar_type() == at::kBFloat16 && !multiplies_in_fp32(qkv);
}

std::vector<at::Tensor> attention_forward(const at::Tensor& qkv, std::int64_t heads, bool gather) {
  const std::int64_t batch = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / 3;
  const at::Tensor lse = at::empty({batch, heads, tokens}, qkv.options().dtype(at::kFloat));
  if (gather) return {forward_gathered(qkv, heads, lse), lse};
  const at::Tensor x = to_fp32(qkv);
  at::Tensor out = at::empty({batch, tokens, width}, x.options());
  forward_in_place(x, heads, out, lse);
  return {qkv.scalar_type() == at::kFloat ? out : to_bf16(out), lse};
}

at::Tensor attention_backward(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                              const at::Tensor& lse, bool gather) {
  if (gather) return backward_gathered(qkv, heads, dout, lse);
  const at::Tensor x = to_fp32(qkv);
  at::Tensor grad = at::empty_like(x);
  backward_in_place(x, heads, to_fp32(dout), lse, grad);
  return qkv.scalar_type() == at::kFloat ? grad : to_bf16(grad);
}

namespace {

struct Attention : public torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, std::int64_t heads) {
    const at::Tensor x = qkv.contiguous();
    const auto results = keep_in_selective(
        "attention", {x}, [&] { return attention_forward(x, heads, gathers_heads(x)); });
    ctx->save_for_backward({x, results[1]});
    ctx->saved_data["heads"] = heads;
    return results[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {attention_backward(saved[0], ctx->saved_data["heads"].toInt(), grads[0].contiguous(),
                               saved[1], gathers_heads(saved[0])),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& qkv, std::int64_t heads) {
  if (qkv.dim() != 3 || heads < 1 || qkv.size(2) % (3 * heads) != 0) {
    throw UsageError(str("attention got a tensor of ", qkv.dim(), " dims, the last of ",
                         qkv.size(-1), ", for ", heads,
                         " heads; wanted [batch, tokens, 3 · heads · width of a head]"));
  }
  if (is_ours(qkv) && qkv.numel() > 0) return Attention::apply(qkv, heads);
  if (at::Tensor out = gpu_attention(qkv, heads, heads); out.defined()) return out;
  const auto parts = qkv.chunk(3, 2);
  const auto split = [&](const at::Tensor& x) {  // [B, H, T, d]
    return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
  };
  return at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]), {},
                                          0.0, /*is_causal=*/true)
      .transpose(1, 2)
      .reshape(parts[0].sizes());
}

}  // namespace tessera::nn
