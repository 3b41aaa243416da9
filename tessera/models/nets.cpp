#include "tessera/models/nets.h"

#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::models {

MlpImpl::MlpImpl(const std::vector<std::int64_t>& widths) {
  if (widths.size() < 2) {
    throw UsageError(str("an MLP got ", widths.size(),
                         " widths; wanted at least those of its "
                         "input and of its output"));
  }
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layers_.push_back(
        register_module("layer" + std::to_string(i), torch::nn::Linear(widths[i], widths[i + 1])));
  }
}

at::Tensor MlpImpl::forward(at::Tensor x) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i](x);
    if (i + 1 < layers_.size()) x = x.relu();
  }
  return x;
}

ConvNetImpl::ConvNetImpl(std::int64_t channels, std::int64_t width, std::int64_t classes) {
  const auto conv = [](std::int64_t in, std::int64_t out) {
    // The norm behind it takes away what a bias would add.
    return torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1).bias(false);
  };
  conv1_ = register_module("conv1", torch::nn::Conv2d(conv(channels, width)));
  norm1_ = register_module("norm1", torch::nn::BatchNorm2d(width));
  conv2_ = register_module("conv2", torch::nn::Conv2d(conv(width, 2 * width)));
  norm2_ = register_module("norm2", torch::nn::BatchNorm2d(2 * width));
  head_ = register_module("head", torch::nn::Linear(2 * width, classes));
}

at::Tensor ConvNetImpl::forward(const at::Tensor& images) {
  at::Tensor x = norm1_(conv1_(images)).relu();
  x = norm2_(conv2_(x)).relu();
  return head_(x.mean({2, 3}));
}

}  // namespace tessera::models
