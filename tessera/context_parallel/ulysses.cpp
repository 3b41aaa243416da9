// [Note: context parallelism], ulysses.

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "tessera/context_parallel/kinds.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::context_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct Exchange : torch::CustomClassHolder {
  Exchange(comm::Group g, std::string l) : group(std::move(g)), label(std::move(l)) {}
  comm::Group group;
  std::string label;
};
using ExchangePointer = c10::intrusive_ptr<Exchange>;

// Sends in[r] to rank r. Element r of the result is from rank r.
at::Tensor exchanged(const comm::Group& group, const at::Tensor& in, const std::string& label) {
  at::Tensor out = at::empty_like(in);
  comm::Call call;
  call.label = label;
  group.all_to_all(out, in, call).wait();
  return out;
}

// Calls f(rank, range) for the ranges of tokens of all ranks, which have `tokens` tokens each.
template <typename F>
void each_range(const comm::Group& group, std::int64_t tokens, F&& f) {
  for (int rank = 0; rank < group.size(); ++rank) {
    const SequencePart part{rank, group.size()};
    for (const TokenRange& range : part.ranges(tokens)) f(rank, range);
  }
}

// From this rank's tokens [B, T / ranks, ranks, width], where width holds the heads of one rank, to
// all tokens of this rank's heads, [B, T, width].
at::Tensor tokens_to_heads(const comm::Group& group, const at::Tensor& x,
                           const std::string& label) {
  const at::Tensor all = exchanged(group, x.permute({2, 0, 1, 3}).contiguous(), label);
  const std::int64_t tokens = x.size(1);
  at::Tensor whole = at::empty({x.size(0), tokens * group.size(), x.size(3)}, x.options());
  each_range(group, tokens, [&](int rank, const TokenRange& range) {
    whole.narrow(1, range.position, range.count)
        .copy_(all.select(0, rank).narrow(1, range.local, range.count));
  });
  return whole;
}

// The inverse of tokens_to_heads().
at::Tensor heads_to_tokens(const comm::Group& group, const at::Tensor& x,
                           const std::string& label) {
  const std::int64_t tokens = x.size(1) / group.size();
  const at::Tensor all = at::empty({group.size(), x.size(0), tokens, x.size(2)}, x.options());
  each_range(group, tokens, [&](int rank, const TokenRange& range) {
    all.select(0, rank)
        .narrow(1, range.local, range.count)
        .copy_(x.narrow(1, range.position, range.count));
  });
  return exchanged(group, all, label).permute({1, 2, 0, 3}).contiguous();
}

struct TokensToHeads : torch::autograd::Function<TokensToHeads> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const ExchangePointer& exchange) {
    ctx->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    return nn::keep_in_selective("tokens to heads over cp", {x}, [&] {
      return tensor_list{tokens_to_heads(exchange->group, x, exchange->label)};
    })[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("context-parallel attention");
    const auto exchange =
        c10::static_intrusive_pointer_cast<Exchange>(ctx->saved_data["exchange"].toCapsule());
    return {heads_to_tokens(exchange->group, grads[0], exchange->label + " backward"),
            at::Tensor()};
  }
};

struct HeadsToTokens : torch::autograd::Function<HeadsToTokens> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const ExchangePointer& exchange) {
    ctx->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    return nn::keep_in_selective("heads to tokens over cp", {x}, [&] {
      return tensor_list{heads_to_tokens(exchange->group, x, exchange->label)};
    })[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("context-parallel attention");
    const auto exchange =
        c10::static_intrusive_pointer_cast<Exchange>(ctx->saved_data["exchange"].toCapsule());
    return {tokens_to_heads(exchange->group, grads[0], exchange->label + " backward"),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor ulysses_attention(const Axis& axis, const at::Tensor& qkv, std::int64_t heads,
                             std::int64_t kv_heads, const nn::AttentionOptions& given,
                             const std::string& label) {
  const std::int64_t ranks = axis.size(), dim = qkv.size(2) / (heads + 2 * kv_heads);
  const std::int64_t repeats = kv_heads < ranks ? ranks / kv_heads : 1;
  // Returns heads [first, first + n) by the rank that gets them, [B, T / ranks, ranks, width].
  const auto by_rank = [&](std::int64_t first, std::int64_t n, std::int64_t times) {
    at::Tensor x = qkv.narrow(2, first * dim, n * dim);
    if (times > 1) {
      x = x.unflatten(2, {n, 1, dim}).expand({-1, -1, -1, times, -1}).flatten(2);
    }
    return x.unflatten(2, {ranks, -1});
  };
  const at::Tensor mine = at::cat({by_rank(0, heads, 1), by_rank(heads, kv_heads, repeats),
                                   by_rank(heads + kv_heads, kv_heads, repeats)},
                                  3);
  nn::AttentionOptions options = given;
  options.first_head += axis.rank() * (heads / ranks);
  options.whole_rows = true;
  const at::Tensor whole = TokensToHeads::apply(
      mine, c10::make_intrusive<Exchange>(axis.group, label + " tokens to heads"));
  const at::Tensor out = nn::attention(whole, heads / ranks, kv_heads * repeats / ranks, options);
  return HeadsToTokens::apply(out,
                              c10::make_intrusive<Exchange>(axis.group, label + " heads to tokens"))
      .flatten(2);
}

}  // namespace tessera::context_parallel
