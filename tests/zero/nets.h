#pragma once

// Small networks that cover the difficult cases of an engine, and data for them.

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/unit.h"

namespace tessera::zero::test {

// Numbers that depend only on the seed: ranks are threads here and share torch's generator.
inline at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  const std::int64_t count = c10::multiply_integers(sizes);
  at::Tensor values = at::empty({count}, at::kFloat);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    values.data_ptr<float>()[i] =
        static_cast<float>(static_cast<double>((state * 0x2545f4914f6cdd1dull) >> 40) / (1 << 23)) -
        1;
  }
  return values.view(sizes);
}

struct Batch {
  at::Tensor x, y;
};

// A network with its loss: the mean over the batch.
class Net : public torch::nn::Module {
 public:
  virtual at::Tensor loss(const Batch& batch) = 0;
  virtual Batch batch(std::uint64_t seed) const = 0;
  // Ranks compute different things if the network has a choice.
  virtual void set_rank(int) {}

  // Sets values that depend on the seed, with a scale that keeps activations near 1.
  void initialize(std::uint64_t seed) {
    const at::NoGradGuard no_grad;
    for (const auto& entry : named_parameters()) {
      const at::Tensor& p = entry.value();
      const double fan =
          p.dim() >= 2 && p.numel() > 0 ? static_cast<double>(p.numel() / p.size(0)) : 4;
      p.copy_((numbers(p.sizes(), ++seed) / std::sqrt(fan)).to(p.scalar_type()));
      if (entry.key().find("norm") != std::string::npos && p.dim() == 1) p.add_(0.9);
    }
  }
};

constexpr std::int64_t kSamples = 3;  // per micro-batch

// Sequential: its children are units by themselves.
class Mlp : public Net {
 public:
  Mlp() {
    layers =
        register_module("layers", torch::nn::Sequential(torch::nn::Linear(5, 9), torch::nn::Tanh(),
                                                        torch::nn::Linear(9, 7), torch::nn::ReLU(),
                                                        torch::nn::Linear(7, 3)));
  }
  at::Tensor loss(const Batch& b) override {
    const at::Tensor x = b.x.to(layers->parameters().front().scalar_type());
    return torch::mse_loss(layers->forward(x).to(at::kFloat), b.y);
  }
  Batch batch(std::uint64_t seed) const override {
    const at::Tensor x = numbers({kSamples, 5}, seed);
    return {x, (x.narrow(1, 0, 3) * 2).sin()};
  }
  torch::nn::Sequential layers{nullptr};
};

// Batch norm: buffers, and separate statistics for each micro-batch. No units.
class Conv : public Net {
 public:
  Conv()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(3))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)))),
        head(register_module("head", torch::nn::Linear(4, 2))) {}
  at::Tensor loss(const Batch& b) override {
    at::Tensor x = b.x.to(head->weight.scalar_type());
    x = torch::relu(norm->forward(conv1->forward(x)));
    x = conv2->forward(x).mean({2, 3});
    return torch::mse_loss(head->forward(x).to(at::kFloat), b.y);
  }
  Batch batch(std::uint64_t seed) const override {
    const at::Tensor x = numbers({kSamples, 2, 6, 6}, seed);
    return {x, x.mean({2, 3}) * 4};
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d conv2;
  torch::nn::Linear head;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  at::Tensor forward(at::Tensor x) {
    at::Tensor y = up->forward(norm->forward(x));
    // Running means mix positions causally instead of attention.
    const at::Tensor count =
        at::arange(1, y.size(1) + 1, y.options().dtype(at::kFloat)).view({1, -1, 1});
    y = torch::gelu(y + (y.to(at::kFloat).cumsum(1) / count).to(y.scalar_type()));
    return x + down->forward(y);
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

// A tied-weight language model of units.
class Tied : public Net {
 public:
  static constexpr std::int64_t kVocab = 11, kWidth = 6, kLength = 5;
  Tied() : embed(register_module("embed", torch::nn::Embedding(kVocab, kWidth))) {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(
          register_module(std::string("block") + std::to_string(i), nn::Unit<BlockImpl>(kWidth)));
    }
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  at::Tensor loss(const Batch& b) override {
    at::Tensor x = embed->forward(b.x);
    for (auto& block : blocks) x = block(x);
    const at::Tensor logits = torch::linear(norm->forward(x), embed->weight).to(at::kFloat);
    return torch::cross_entropy_loss(logits.view({-1, kVocab}), b.y.flatten());
  }
  Batch batch(std::uint64_t seed) const override {
    const at::Tensor ids = ((numbers({kSamples, kLength}, seed) + 1) * (kVocab / 2.0))
                               .to(at::kLong)
                               .clamp(0, kVocab - 1);
    return {ids, (ids + 3).remainder(kVocab)};
  }
  torch::nn::Embedding embed;
  std::vector<nn::Unit<BlockImpl>> blocks;
  torch::nn::LayerNorm norm{nullptr};
};

// Parameters that are unused, used on some ranks only, frozen, empty, transposed or of another
// type.
class Odd : public Net {
 public:
  explicit Odd(at::ScalarType other = at::kBFloat16)
      : first(register_module("first", torch::nn::Linear(5, 8))),
        second(register_module("second", torch::nn::Linear(8, 3))),
        side(register_module("side", torch::nn::Linear(5, 3))),
        unused(register_module("unused", torch::nn::Linear(4, 4))),
        frozen(register_parameter("frozen", at::zeros({8}), /*requires_grad=*/false)),
        empty(register_parameter("empty", at::zeros({0, 3}))),
        turned(register_parameter("turned", at::zeros({3, 3}).t())),
        half(register_parameter("half", at::zeros({3}, other))) {}
  void set_rank(int rank) override { odd_rank = rank % 2 == 1; }
  at::Tensor loss(const Batch& b) override {
    const at::Tensor x = b.x.to(first->weight.scalar_type());
    const at::Tensor h = torch::tanh(first->forward(x) + frozen.to(x.scalar_type()));
    at::Tensor y = second->forward(h);
    if (odd_rank) y = y + side->forward(x);
    y = torch::matmul(y, turned.to(y.scalar_type())).to(at::kFloat) + half.to(at::kFloat);
    return torch::mse_loss(y, b.y) + empty.to(at::kFloat).sum();
  }
  Batch batch(std::uint64_t seed) const override {
    const at::Tensor x = numbers({kSamples, 5}, seed);
    return {x, x.narrow(1, 1, 3).cos()};
  }
  torch::nn::Linear first, second, side, unused;
  at::Tensor frozen, empty, turned, half;
  bool odd_rank = false;
};

inline std::shared_ptr<Net> make_net(const std::string& name) {
  if (name == "mlp") return std::make_shared<Mlp>();
  if (name == "conv") return std::make_shared<Conv>();
  if (name == "tied") return std::make_shared<Tied>();
  if (name == "odd32") return std::make_shared<Odd>(at::kFloat);
  return std::make_shared<Odd>();
}

}  // namespace tessera::zero::test
