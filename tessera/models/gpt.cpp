#include "tessera/models/gpt.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/models/init.h"
#include "tessera/nn/ops.h"

namespace tessera::models {

AffineImpl::AffineImpl(at::IntArrayRef weight_sizes, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty(weight_sizes, options))),
      bias(register_parameter("bias", at::empty({weight_sizes[0]}, options))) {}

TableImpl::TableImpl(std::int64_t rows, std::int64_t width, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({rows, width}, options))) {}

BlockImpl::BlockImpl(const planner::ModelShape& shape, const at::TensorOptions& options)
    : heads_(shape.heads) {
  const std::int64_t width = shape.hidden;
  const auto affine = [&](const char* name, at::IntArrayRef sizes) {
    return register_module(name, Affine(sizes, options));
  };
  norm1_ = affine("norm1", {width});
  qkv_ = affine("qkv", {3 * width, width});
  proj_ = affine("proj", {width, width});
  norm2_ = affine("norm2", {width});
  fc_ = affine("fc", {shape.ffn, width});
  proj2_ = affine("proj2", {width, shape.ffn});
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor before = nn::layer_norm(x, norm1_->weight, norm1_->bias);
  const at::Tensor mixed = nn::attention(nn::linear(before, qkv_->weight, qkv_->bias), heads_);
  const auto [h, sum] = nn::add_layer_norm(x, nn::linear(mixed, proj_->weight, proj_->bias),
                                           norm2_->weight, norm2_->bias);
  const at::Tensor wide = nn::linear_gelu(h, fc_->weight, fc_->bias);
  return sum + nn::linear(wide, proj2_->weight, proj2_->bias);
}

void check_gpt_shape(const planner::ModelShape& shape) {
  planner::check(shape);
  if (shape.positions < 1 || shape.swiglu || !shape.biases || !shape.tied ||
      shape.kv_heads != shape.heads) {
    throw UsageError(str("model ", quote(shape.name),
                         " is not GPT-2-like; wanted learned positions, an MLP of two matrices, "
                         "biases, a tied head and as many kv-heads as heads"));
  }
}

void check_ids(const planner::ModelShape& shape, const at::Tensor& ids) {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.size(1) > shape.positions) {
    throw UsageError(
        str("GPT got ids of ", ids.dim(), " dims, the last of ", ids.dim() > 0 ? ids.size(-1) : 0,
            ", of type ", c10::toString(ids.scalar_type()),
            "; wanted int64 [batch, tokens] with at most ", shape.positions, " tokens"));
  }
}

GptImpl::GptImpl(const planner::ModelShape& shape, std::uint64_t seed,
                 const at::TensorOptions& options)
    : shape_(shape) {
  check_gpt_shape(shape);
  tok_ = register_module("tok", Table(shape.vocab, shape.hidden, options));
  pos_ = register_module("pos", Table(shape.positions, shape.hidden, options));
  torch::nn::ModuleList list;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    blocks_.emplace_back(shape, options);
    list->push_back(blocks_.back().ptr());
  }
  register_module("blocks", list);
  norm_ = register_module("norm", Affine(at::IntArrayRef{shape.hidden}, options));
  initialise(*this, shape, seed);
}

at::Tensor GptImpl::hidden(const at::Tensor& ids) {
  check_ids(shape_, ids);
  at::Tensor x = at::embedding(tok_->weight, ids) + pos_->weight.narrow(0, 0, ids.size(1));
  for (auto& block : blocks_) x = block->forward(x);
  return nn::layer_norm(x, norm_->weight, norm_->bias);
}

at::Tensor GptImpl::forward(const at::Tensor& ids) {
  return nn::linear(hidden(ids), tok_->weight, at::Tensor());
}

at::Tensor GptImpl::loss(const at::Tensor& ids, const at::Tensor& targets) {
  return nn::linear_cross_entropy(hidden(ids), tok_->weight, targets);
}

}  // namespace tessera::models
