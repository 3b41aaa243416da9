#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/nn/unit.h"

namespace tessera::models {

class PlainBlockImpl : public torch::nn::Module {
 public:
  explicit PlainBlockImpl(const ModelShape& shape);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::int64_t heads_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr}, fc_{nullptr}, proj2_{nullptr};
};

// The network of GPT-2, written with LibTorch only: the oracle of tests, and the baseline of
// benchmarks. Its parameters have the same names and initial values.
class PlainGptImpl : public torch::nn::Module {
 public:
  explicit PlainGptImpl(const ModelShape& shape, std::uint64_t seed = 0);
  at::Tensor forward(const at::Tensor& ids);
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets);

 private:
  ModelShape shape_;
  torch::nn::Embedding tok_{nullptr}, pos_{nullptr};
  std::vector<nn::Unit<PlainBlockImpl>> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
};
TORCH_MODULE(PlainGpt);

}  // namespace tessera::models
