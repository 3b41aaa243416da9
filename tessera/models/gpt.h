#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "tessera/nn/unit.h"
#include "tessera/planner/model_shape.h"

namespace tessera::models {

// A weight and a bias, left uninitialised: a linear's [out, in] and [out], or a norm's.
class AffineImpl : public torch::nn::Module {
 public:
  AffineImpl(at::IntArrayRef weight_sizes, const at::TensorOptions& options);
  at::Tensor weight, bias;
};
TORCH_MODULE(Affine);

class TableImpl : public torch::nn::Module {
 public:
  TableImpl(std::int64_t rows, std::int64_t width, const at::TensorOptions& options);
  at::Tensor weight;
};
TORCH_MODULE(Table);

// x + attention(norm(x)), then x + mlp(norm(x)).
// Kept from forward to backward, with no checkpointing, for N tokens, width C, H heads, e bytes an
// element (see nn/ops.h; x is the output of the block before):
//   x [N, C], norm1 [N, C], qkv [N, 3C], attention [N, C], x + attention [N, C], norm2 [N, C],
//   fc without bias [N, 4C], gelu [N, 4C]:   N · C · 16 · e (with ffn = 4C: 8 + 2 ffn / C)
//   mean and deviation of both norms, log-sum-exp:   N · (16 + 4 H)
// With selective checkpointing: x [N, C] and the products qkv [N, 3C], attention [N, C], proj [N,
// C], fc [N, 4C], proj2 [N, C]:   N · C · 11 · e + N · 4 H; with full: x alone, N · C · e.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const planner::ModelShape& shape, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);  // [B, T, C]

 private:
  std::int64_t heads_;
  Affine norm1_{nullptr}, qkv_{nullptr}, proj_{nullptr}, norm2_{nullptr}, fc_{nullptr},
      proj2_{nullptr};
};

// GPT-2: learned positions, blocks with the norm first, a final norm, the embedding as the head.
// Runs on the operations of nn/ops.h. Parameters: tok.weight, pos.weight, blocks.0.norm1.weight, …,
// norm.bias; their count is shape.params().
class GptImpl : public torch::nn::Module {
 public:
  // Throws UsageError for a shape that is not of this kind (rotary, SwiGLU, untied, no biases).
  // On the meta device nothing is allocated or initialised.
  explicit GptImpl(const planner::ModelShape& shape, std::uint64_t seed = 0,
                   const at::TensorOptions& options = {});

  at::Tensor forward(const at::Tensor& ids);  // int64 [B, T] -> logits [B, T, V]
  // The sum of the cross entropies over the targets [B, T] that are not -1, as an fp32 scalar.
  // Saves besides the blocks: the sum of both embeddings (as the first block's input), the final
  // norm's output [N, C] and 8·N bytes, the gradient of the logits [N, V].
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);

  const planner::ModelShape& shape() const { return shape_; }

 private:
  at::Tensor hidden(const at::Tensor& ids);

  planner::ModelShape shape_;
  Table tok_{nullptr}, pos_{nullptr};
  std::vector<nn::Unit<BlockImpl>> blocks_;
  Affine norm_{nullptr};
};
TORCH_MODULE(Gpt);

// Throws UsageError unless Gpt and PlainGpt can be built with it.
void check_gpt_shape(const planner::ModelShape& shape);
// Throws UsageError unless ids are int64 [B, T] with T within the positions.
void check_ids(const planner::ModelShape& shape, const at::Tensor& ids);

}  // namespace tessera::models
