#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

namespace tessera::models {

// Linears of these widths with ReLU between them.
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const std::vector<std::int64_t>& widths);
  at::Tensor forward(at::Tensor x);  // [N, first width] -> [N, last width]

 private:
  std::vector<torch::nn::Linear> layers_;
};
TORCH_MODULE(Mlp);

// Two convolutions with batch norm and ReLU, each halving the image, the mean over it, a linear.
class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl(std::int64_t channels, std::int64_t width, std::int64_t classes);
  at::Tensor forward(const at::Tensor& images);  // [N, channels, H, W] -> [N, classes]

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(ConvNet);

}  // namespace tessera::models
