// Attention as an operation: choice of the implementation, and the state kept for backward.

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_attention.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct Attention : public torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, std::int64_t heads,
                            const c10::intrusive_ptr<KeptOptions>& kept) {
    const at::Tensor x = qkv.contiguous();
    const auto results = keep_in_selective("attention", {x}, [&] {
      return attention_forward(x, heads, gathers_heads(x), options_in(kept));
    });
    ctx->save_for_backward({x, results[1]});
    ctx->saved_data["heads"] = heads;
    if (kept) ctx->saved_data["options"] = c10::IValue::make_capsule(kept);
    return results[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("attention");
    const auto saved = ctx->get_saved_variables();
    const auto kept = kept_options(*ctx);
    return {attention_backward(saved[0], ctx->saved_data["heads"].toInt(), grads[0].contiguous(),
                               saved[1], gathers_heads(saved[0]), options_in(kept)),
            at::Tensor(), at::Tensor()};
  }
};

void check_attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& options) {
  if (qkv.dim() != 3 || heads < 1 || kv_heads < 1 || heads % kv_heads != 0 ||
      qkv.size(2) % (heads + 2 * kv_heads) != 0) {
    throw UsageError(str("attention: a tensor with ", qkv.dim(), " dims, the last of size ",
                         qkv.dim() > 0 ? qkv.size(-1) : 0, ", for ", heads, " heads and ", kv_heads,
                         " KV heads. The tensor must be [batch, tokens, (heads + 2 · KV heads) · "
                         "head width], and the heads a multiple of the KV heads."));
  }
  const at::Tensor& starts = options.document_starts;
  if (starts.defined() && (starts.scalar_type() != at::kInt || starts.dim() != 2 ||
                           starts.size(0) != qkv.size(0) || starts.size(1) != qkv.size(1) ||
                           starts.device() != qkv.device() || !starts.is_contiguous())) {
    throw UsageError(tessera::str("attention: document starts are ", starts.sizes(), " of type ",
                                  c10::toString(starts.scalar_type()), " on ",
                                  starts.device().str(), ". They must be contiguous int32 [",
                                  qkv.size(0), ", ", qkv.size(1), "] on ", qkv.device().str(),
                                  "."));
  }
  if (options.window < 0 || !(options.dropout.rate >= 0) || options.dropout.rate >= 1) {
    throw UsageError(str("attention: window ", options.window, " and dropout ",
                         options.dropout.rate,
                         ". The window must not be negative, and dropout must be in [0, 1)."));
  }
}

// Repeats keys and values for every head that uses them: [B, T, 3 · heads · d].
at::Tensor with_repeated_keys(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t dim = qkv.size(2) / (heads + 2 * kv_heads), times = heads / kv_heads;
  const at::Tensor kv = qkv.narrow(2, heads * dim, 2 * kv_heads * dim)
                            .unflatten(2, {2 * kv_heads, 1, dim})
                            .expand({-1, -1, -1, times, -1})
                            .reshape({qkv.size(0), qkv.size(1), 2 * heads * dim});
  return at::cat({qkv.narrow(2, 0, heads * dim), kv}, 2);
}

// Returns the positions of the rows [H · T] of a sample's probabilities in the whole model.
std::vector<TokenRange> rows_of_heads(const AttentionOptions& options, std::int64_t heads,
                                      std::int64_t tokens) {
  const std::int64_t whole = options.row_tokens > 0 ? options.row_tokens : tokens;
  if (whole == tokens) return {{0, options.first_head * tokens, heads * tokens}};
  std::vector<TokenRange> rows;
  for (std::int64_t head = 0; head < heads; ++head) {
    rows.push_back({head * tokens, (options.first_head + head) * whole, tokens});
  }
  return rows;
}

// Attention by ATen's operations, with [B, T, T] masks, for cases that no fused kernel supports.
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
  const double scale =
      options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  if (!options.any() && options.cap == 0) {
    return together(at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true, scale));
  }
  const at::Tensor seen =  // [B or 1, 1, T, T]
      attention_mask(options, {.tokens = tokens}, tokens, tokens, qkv.device());
  if (options.dropout.rate == 0 && options.cap == 0) {
    return together(at::scaled_dot_product_attention(q, k, v, seen, 0.0, false, scale));
  }
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)).to(at::kFloat) * scale;
  if (options.cap > 0) scores = (scores / options.cap).tanh() * options.cap;
  scores = scores.masked_fill(seen.logical_not(), -INFINITY);
  const at::Tensor probabilities = at::softmax(scores, -1).to(q.scalar_type());
  if (options.dropout.rate == 0) return together(at::matmul(probabilities, v));
  // [B, H · T, T]: the rows of a sample are those of its heads, one after another.
  const at::Tensor dropped = dropout(probabilities.flatten(1, 2), options.dropout,
                                     rows_of_heads(options, heads, tokens), 0, options.row_tokens)
                                 .view(probabilities.sizes());
  return together(at::matmul(dropped, v));
}

}  // namespace

const AttentionOptions* options_in(const c10::intrusive_ptr<KeptOptions>& kept) {
  return kept ? &kept->options : nullptr;
}
c10::intrusive_ptr<KeptOptions> kept_options(AutogradContext& ctx) {
  const auto found = ctx.saved_data.find("options");
  if (found == ctx.saved_data.end()) return {};
  return c10::static_intrusive_pointer_cast<KeptOptions>(found->second.toCapsule());
}
c10::intrusive_ptr<KeptOptions> keep_options(const AttentionOptions& options) {
  if (!options.any()) return {};
  auto kept = c10::make_intrusive<KeptOptions>();
  kept->options = options;
  return kept;
}

at::Tensor attention_mask(const AttentionOptions& options, const AttentionPart& part,
                          std::int64_t queries, std::int64_t keys, c10::Device device) {
  const auto type = at::device(device).dtype(at::kInt);
  const at::Tensor key = at::arange(part.first_key, part.first_key + keys, type);
  const at::Tensor query =
      at::arange(part.first_query, part.first_query + queries, type).unsqueeze(1);
  at::Tensor seen = query >= key;
  if (options.window > 0) seen = seen.logical_and(query - key < options.window);
  seen = seen.unsqueeze(0);
  if (options.document_starts.defined()) {
    const at::Tensor starts = options.document_starts.narrow(1, part.first_query, queries);
    seen = seen.logical_and(starts.unsqueeze(2) <= key);
  }
  return seen.unsqueeze(1);
}

at::Tensor attention(const at::Tensor& qkv, std::int64_t heads) {
  return attention(qkv, heads, heads);
}

at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& given) {
  check_attention(qkv, heads, kv_heads, given);
  if (!given.whole_rows) expect_whole_rows("attention", "context_parallel::attention()");
  AttentionOptions options = given;
  if (options.window >= qkv.size(1)) options.window = 0;  // the window covers everything
  const bool plain = options.scale == 0 && options.cap == 0;
  if (plain) {
    if (at::Tensor out = gpu_attention(qkv, heads, kv_heads, options); out.defined()) return out;
  }
  const at::Tensor all = heads == kv_heads ? qkv : with_repeated_keys(qkv, heads, kv_heads);
  if (plain && has_cpu_kernel(all) && all.numel() > 0) {
    return Attention::apply(all, heads, keep_options(options));
  }
  return attention_by_products(all, heads, options);
}

}  // namespace tessera::nn
