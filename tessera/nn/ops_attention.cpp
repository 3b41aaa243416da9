#include "tessera/nn/ops_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/dropout.h"
#include "tessera/kernels/dropout_rule.h"
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
// With a window, or several documents in a sequence, a block sees the keys from the first that its
// first query sees: blocks of keys outside are never multiplied. Gradients of keys start as zeros
// then.
constexpr std::int64_t block_rows = 128;
constexpr std::int64_t group_elements = 1 << 17;  // of scores, at least one head

// What the queries of one sequence see, and what of it is dropped.
struct Sight {
  std::int64_t window = 0;
  const std::int32_t* starts = nullptr;  // of each token's document
  const AttentionOptions* options = nullptr;
  std::int64_t heads = 0;  // in a sequence
  std::int64_t index = 0;  // of the group's first head, among those of all sequences

  bool whole() const { return window == 0 && starts == nullptr; }
  std::int64_t first(std::int64_t token) const {
    const std::int64_t from = window > 0 ? std::max<std::int64_t>(0, token - window + 1) : 0;
    return starts == nullptr ? from : std::max<std::int64_t>(from, starts[token]);
  }
  // The most keys that a block sees.
  std::int64_t widest(std::int64_t tokens) const {
    return window > 0 ? std::min(tokens, window + block_rows) : tokens;
  }
};

Sight sight_of(const AttentionOptions* options, std::int64_t heads, std::int64_t sequence,
               std::int64_t index) {
  Sight sight{.options = options, .heads = heads, .index = index};
  if (options == nullptr) return sight;
  sight.window = options->window;
  if (options->document_starts.defined()) {
    const at::Tensor& starts = options->document_starts;
    sight.starts = starts.const_data_ptr<std::int32_t>() + sequence * starts.size(1);
  }
  return sight;
}

std::int64_t scores_at_once(std::int64_t tokens, const Sight& sight) {
  return std::min(block_rows, tokens) * sight.widest(tokens);
}
std::int64_t group_size(std::int64_t heads, std::int64_t tokens, const Sight& sight) {
  return std::clamp<std::int64_t>(group_elements / scores_at_once(tokens, sight), 1, heads);
}

// Of some heads, each [G, T, d]; lse is the place of [G, T].
struct Heads {
  at::Tensor q, k, v;
};

struct Block {
  std::int64_t begin, rows;
  std::int64_t from, keys;  // that it sees
  std::array<std::int32_t, block_rows> skipped;
};

Block block_at(std::int64_t begin, std::int64_t tokens, const Sight& sight) {
  Block block{begin, std::min(block_rows, tokens - begin), sight.first(begin), 0, {}};
  block.keys = begin + block.rows - block.from;
  for (std::int64_t r = 0; !sight.whole() && r < block.rows; ++r) {
    block.skipped[static_cast<std::size_t>(r)] =
        static_cast<std::int32_t>(sight.first(begin + r) - block.from);
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

kernels::CausalRows rows_of(const Heads& in, const Block& block, const Sight& sight) {
  return {.type = type_of(in.q),
          .rows = count(block.rows),
          .cols = count(block.keys),
          .first = count(block.begin + 1 - block.from),
          .scale = scale_of(in),
          .skipped = sight.whole() ? nullptr : block.skipped.data()};
}

// Drops probabilities of one head, or their gradients: [Note: dropout] in pass.h.
void drop_probabilities(const at::Tensor& matrix, std::int64_t g, const Block& block,
                        const Sight& sight, std::int64_t tokens) {
  if (sight.options == nullptr || sight.options->dropout.rate == 0) return;
  const Dropout& how = sight.options->dropout;
  const std::int64_t sample = (sight.index + g) / sight.heads;
  const std::int64_t head = sight.options->first_head + (sight.index + g) % sight.heads;
  const kernels::Dropout mask = {
      .seed = how.seed,
      .stream = kernels::stream_of_sample(how.stream,
                                          how.first_sample + static_cast<std::uint64_t>(sample)),
      .rate = how.rate,
      .width = count(tokens)};
  const at::Tensor rows = matrix.select(0, g);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    kernels::drop(mask, type_of(matrix),
                  static_cast<std::uint64_t>(head * tokens + block.begin + r), count(block.from),
                  row_out(rows, r), count(block.begin + r + 1 - block.from));
  }
}

void forward_group(const Heads& in, const at::Tensor& out, float* lse, const at::Tensor& scratch,
                   const Sight& sight) {
  const std::int64_t group = in.q.size(0), tokens = in.q.size(1);
  for (std::int64_t begin = 0; begin < tokens; begin += block_rows) {
    const Block block = block_at(begin, tokens, sight);
    const at::Tensor scores = scores_of(in, block, scratch);
    at::parallel_for(0, group, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t g = from; g < to; ++g) {
        kernels::softmax_causal_forward(rows_of(in, block, sight), row_out(scores, g),
                                        lse + g * tokens + begin);
        drop_probabilities(scores, g, block, sight, tokens);
      }
    });
    at::Tensor part = out.narrow(1, begin, block.rows);
    at::bmm_out(part, scores, in.v.narrow(1, block.from, block.keys));
  }
}

// to[:, from : from + keys] = a · b, or += if not the first time.
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
                    const at::Tensor& scratch, const at::Tensor& dscratch, const Sight& sight) {
  const std::int64_t group = in.q.size(0), tokens = in.q.size(1);
  const std::int64_t last = (tokens - 1) / block_rows * block_rows;
  if (!sight.whole()) {
    grad.k.zero_();
    grad.v.zero_();
  }
  for (std::int64_t begin = last; begin >= 0; begin -= block_rows) {
    const Block block = block_at(begin, tokens, sight);
    const at::Tensor d = dout.narrow(1, begin, block.rows);
    const at::Tensor scores = scores_of(in, block, scratch);
    at::Tensor dscores =
        dscratch.narrow(0, 0, scores.numel()).view({group, block.rows, block.keys});
    bmm_nt_out(dscores, d, in.v.narrow(1, block.from, block.keys));
    at::parallel_for(0, group, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t g = from; g < to; ++g) {
        drop_probabilities(dscores, g, block, sight, tokens);
        kernels::softmax_causal_backward(rows_of(in, block, sight), row_out(scores, g),
                                         row_out(dscores, g), lse + g * tokens + begin);
        drop_probabilities(scores, g, block, sight, tokens);
      }
    });
    const bool first = begin == last && sight.whole();
    accumulate(grad.v, block.from, scores.transpose(1, 2), d, first);
    accumulate(grad.k, block.from, dscores.transpose(1, 2), in.q.narrow(1, begin, block.rows),
               first);
    at::Tensor dq = grad.q.narrow(1, begin, block.rows);
    at::bmm_out(dq, dscores, in.k.narrow(1, block.from, block.keys));
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

at::Tensor scratch_for(const at::Tensor& qkv, std::int64_t group, const Sight& sight) {
  return at::empty({group * scores_at_once(qkv.size(1), sight)}, qkv.options());
}

void forward_in_place(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& out,
                      const at::Tensor& lse, const AttentionOptions* options) {
  const Sight any = sight_of(options, heads, 0, 0);
  const std::int64_t group = group_size(heads, qkv.size(1), any);
  const at::Tensor scratch = scratch_for(qkv, group, any);
  each_group(qkv, heads, group, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    forward_group(split(qkv.select(0, b), heads, begin, n),
                  heads_of(out.select(0, b), 0, 1, heads, begin, n),
                  lse.mutable_data_ptr<float>() + (b * heads + begin) * qkv.size(1), scratch,
                  sight_of(options, heads, b, b * heads + begin));
  });
}

void backward_in_place(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                       const at::Tensor& lse, const at::Tensor& dqkv,
                       const AttentionOptions* options) {
  const Sight any = sight_of(options, heads, 0, 0);
  const std::int64_t group = group_size(heads, qkv.size(1), any);
  const at::Tensor scratch = scratch_for(qkv, group, any);
  const at::Tensor dscratch = at::empty_like(scratch);
  each_group(qkv, heads, group, [&](std::int64_t b, std::int64_t begin, std::int64_t n) {
    backward_group(split(qkv.select(0, b), heads, begin, n),
                   heads_of(dout.select(0, b), 0, 1, heads, begin, n),
                   lse.const_data_ptr<float>() + (b * heads + begin) * qkv.size(1),
                   split(dqkv.select(0, b), heads, begin, n), scratch, dscratch,
                   sight_of(options, heads, b, b * heads + begin));
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

// f(begin, n, what they see). Where sequences have documents of their own, groups are of one.
template <typename F>
void each_large_group(const at::Tensor& qkv, std::int64_t heads, const AttentionOptions* options,
                      F&& f) {
  const std::int64_t batch = qkv.size(0);
  const Sight any = sight_of(options, heads, 0, 0);
  const std::int64_t sequences = any.starts == nullptr ? 1 : batch, all = heads * batch / sequences;
  const std::int64_t group =
      std::clamp<std::int64_t>(large_group_elements / scores_at_once(qkv.size(1), any), 1, all);
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t begin = 0; begin < all; begin += group) {
      const std::int64_t index = s * all + begin;
      f(index, std::min(group, all - begin), sight_of(options, heads, s, index));
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
                   [&](std::int64_t begin, std::int64_t n, const Sight& sight) {
                     forward_group(part_of(x, begin, n), out[0].narrow(0, begin, n),
                                   lse.mutable_data_ptr<float>() + begin * tokens,
                                   scratch_for(qkv, n, sight), sight);
                   });
  return scattered(out, qkv.size(0));
}

at::Tensor backward_gathered(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                             const at::Tensor& lse, const AttentionOptions* options) {
  const at::Tensor x = gathered(qkv, 3, heads), d = gathered(dout, 1, heads)[0];
  at::Tensor grad = at::empty_like(x);
  const std::int64_t tokens = qkv.size(1);
  each_large_group(
      qkv, heads, options, [&](std::int64_t begin, std::int64_t n, const Sight& sight) {
        backward_group(part_of(x, begin, n), d.narrow(0, begin, n),
                       lse.const_data_ptr<float>() + begin * tokens, part_of(grad, begin, n),
                       scratch_for(qkv, n, sight), scratch_for(qkv, n, sight), sight);
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

namespace {

struct Attention : public torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, std::int64_t heads,
                            const c10::intrusive_ptr<KeptOptions>& how) {
    const at::Tensor x = qkv.contiguous();
    const auto results = keep_in_selective("attention", {x}, [&] {
      return attention_forward(x, heads, gathers_heads(x), options_in(how));
    });
    ctx->save_for_backward({x, results[1]});
    ctx->saved_data["heads"] = heads;
    if (how) ctx->saved_data["how"] = c10::IValue::make_capsule(how);
    return results[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto how = kept_options(*ctx);
    return {attention_backward(saved[0], ctx->saved_data["heads"].toInt(), grads[0].contiguous(),
                               saved[1], gathers_heads(saved[0]), options_in(how)),
            at::Tensor(), at::Tensor()};
  }
};

void check_attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& options) {
  if (qkv.dim() != 3 || heads < 1 || kv_heads < 1 || heads % kv_heads != 0 ||
      qkv.size(2) % (heads + 2 * kv_heads) != 0) {
    throw UsageError(str("attention got a tensor of ", qkv.dim(), " dims, the last of ",
                         qkv.dim() > 0 ? qkv.size(-1) : 0, ", for ", heads, " heads and ", kv_heads,
                         " kv-heads; wanted [batch, tokens, (heads + 2 · kv-heads) · width of a "
                         "head], and heads a multiple of kv-heads"));
  }
  const at::Tensor& starts = options.document_starts;
  if (starts.defined() && (starts.scalar_type() != at::kInt || starts.dim() != 2 ||
                           starts.size(0) != qkv.size(0) || starts.size(1) != qkv.size(1) ||
                           starts.device() != qkv.device() || !starts.is_contiguous())) {
    throw UsageError(tessera::str("attention got document starts ", starts.sizes(), " of type ",
                                  c10::toString(starts.scalar_type()), " on ",
                                  starts.device().str(), "; wanted int32 [", qkv.size(0), ", ",
                                  qkv.size(1), "] on ", qkv.device().str()));
  }
  if (options.window < 0 || !(options.dropout.rate >= 0) || options.dropout.rate >= 1) {
    throw UsageError(str("attention got a window of ", options.window, " and dropout ",
                         options.dropout.rate,
                         "; wanted a window from 0 on, and 0 <= dropout < 1"));
  }
}

// Keys and values once for every head that uses them: [B, T, 3 · heads · d].
at::Tensor with_repeated_keys(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t dim = qkv.size(2) / (heads + 2 * kv_heads), times = heads / kv_heads;
  const at::Tensor kv = qkv.narrow(2, heads * dim, 2 * kv_heads * dim)
                            .unflatten(2, {2 * kv_heads, 1, dim})
                            .expand({-1, -1, -1, times, -1})
                            .reshape({qkv.size(0), qkv.size(1), 2 * heads * dim});
  return at::cat({qkv.narrow(2, 0, heads * dim), kv}, 2);
}

// What no kernel of ours or torch's does at once, by ATen's own operations: [B, T, T] of masks.
at::Tensor attention_by_products(const at::Tensor& qkv, std::int64_t heads,
                                 const AttentionOptions& options) {
  const auto parts = qkv.chunk(3, 2);
  const std::int64_t tokens = qkv.size(1);
  const auto split = [&](const at::Tensor& x) {  // [B, H, T, d]
    return x.view({x.size(0), tokens, heads, x.size(2) / heads}).transpose(1, 2);
  };
  const at::Tensor q = split(parts[0]), k = split(parts[1]), v = split(parts[2]);
  const auto together = [&](const at::Tensor& x) {
    return x.transpose(1, 2).reshape(parts[0].sizes());
  };
  if (!options.any()) {
    return together(at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true));
  }
  const at::Tensor seen = attention_mask(options, tokens, qkv.device());  // [B or 1, 1, T, T]
  if (options.dropout.rate == 0) {
    return together(at::scaled_dot_product_attention(q, k, v, seen));
  }
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = (at::matmul(q, k.transpose(2, 3)).to(at::kFloat) * scale)
                                .masked_fill(seen.logical_not(), -INFINITY);
  const at::Tensor probabilities = at::softmax(scores, -1).to(q.scalar_type());
  // [B, H · T, T]: a sample's rows are those of its heads, one after another.
  const at::Tensor dropped =
      dropout(probabilities.flatten(1, 2), options.dropout, options.first_head * tokens)
          .view(probabilities.sizes());
  return together(at::matmul(dropped, v));
}

}  // namespace

const AttentionOptions* options_in(const c10::intrusive_ptr<KeptOptions>& how) {
  return how ? &how->options : nullptr;
}
c10::intrusive_ptr<KeptOptions> kept_options(AutogradContext& ctx) {
  const auto found = ctx.saved_data.find("how");
  if (found == ctx.saved_data.end()) return {};
  return c10::static_intrusive_pointer_cast<KeptOptions>(found->second.toCapsule());
}
c10::intrusive_ptr<KeptOptions> keep_options(const AttentionOptions& options) {
  if (!options.any()) return {};
  auto kept = c10::make_intrusive<KeptOptions>();
  kept->options = options;
  return kept;
}

at::Tensor attention_mask(const AttentionOptions& options, std::int64_t tokens,
                          c10::Device device) {
  const at::Tensor at = at::arange(tokens, at::device(device).dtype(at::kInt));
  const at::Tensor query = at.unsqueeze(1);  // [T, 1]
  at::Tensor seen = query >= at;
  if (options.window > 0) seen = seen.logical_and(query - at < options.window);
  seen = seen.unsqueeze(0);
  if (options.document_starts.defined()) {
    seen = seen.logical_and(options.document_starts.unsqueeze(2) <= at);
  }
  return seen.unsqueeze(1);
}

at::Tensor attention(const at::Tensor& qkv, std::int64_t heads) {
  return attention(qkv, heads, heads);
}

at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& given) {
  check_attention(qkv, heads, kv_heads, given);
  AttentionOptions options = given;
  if (options.window >= qkv.size(1)) options.window = 0;  // all of it is in the window
  if (at::Tensor out = gpu_attention(qkv, heads, kv_heads, options); out.defined()) return out;
  const at::Tensor all = heads == kv_heads ? qkv : with_repeated_keys(qkv, heads, kv_heads);
  if (is_ours(all) && all.numel() > 0) return Attention::apply(all, heads, keep_options(options));
  return attention_by_products(all, heads, options);
}

}  // namespace tessera::nn
