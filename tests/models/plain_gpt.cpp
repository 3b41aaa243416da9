#include "tests/models/plain_gpt.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/container/modulelist.h>

#include "tessera/models/init.h"
#include "tessera/models/language_model.h"

namespace tessera::models {

PlainBlockImpl::PlainBlockImpl(const ModelShape& shape) : heads_(shape.heads) {
  const std::int64_t width = shape.hidden;
  const torch::nn::LayerNormOptions norm({width});
  norm1_ = register_module("norm1", torch::nn::LayerNorm(norm));
  qkv_ = register_module("qkv", torch::nn::Linear(width, 3 * width));
  proj_ = register_module("proj", torch::nn::Linear(width, width));
  norm2_ = register_module("norm2", torch::nn::LayerNorm(norm));
  fc_ = register_module("fc", torch::nn::Linear(width, shape.ffn));
  proj2_ = register_module("proj2", torch::nn::Linear(shape.ffn, width));
}

at::Tensor PlainBlockImpl::forward(const at::Tensor& x) {
  const auto qkv = qkv_(norm1_(x)).chunk(3, 2);
  const auto split = [&](const at::Tensor& t) {  // [B, H, T, d]
    return t.view({t.size(0), t.size(1), heads_, t.size(2) / heads_}).transpose(1, 2);
  };
  const at::Tensor mixed =
      at::scaled_dot_product_attention(split(qkv[0]), split(qkv[1]), split(qkv[2]), {}, 0.0,
                                       /*is_causal=*/true)
          .transpose(1, 2)
          .reshape(x.sizes());
  const at::Tensor sum = x + proj_(mixed);
  return sum + proj2_(at::gelu(fc_(norm2_(sum)), "tanh"));
}

PlainGptImpl::PlainGptImpl(const ModelShape& shape, std::uint64_t seed) : shape_(shape) {
  tok_ = register_module("tok", torch::nn::Embedding(shape.vocab, shape.hidden));
  pos_ = register_module("pos", torch::nn::Embedding(shape.positions, shape.hidden));
  torch::nn::ModuleList list;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    blocks_.emplace_back(shape);
    list->push_back(blocks_.back().ptr());
  }
  register_module("blocks", list);
  norm_ =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.hidden})));
  initialize(*this, shape, seed);
}

at::Tensor PlainGptImpl::forward(const at::Tensor& ids) {
  check_ids(shape_, ids);
  at::Tensor x = tok_(ids) + pos_(at::arange(ids.size(1), ids.options()));
  for (auto& block : blocks_) x = block->forward(x);
  return at::linear(norm_(x), tok_->weight);
}

at::Tensor PlainGptImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  const at::Tensor logits = forward(ids).to(at::kFloat);
  return at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), targets.reshape({-1}), {},
                                at::Reduction::Sum, -1);
}

}  // namespace tessera::models
