#pragma once

// Small networks as lists of layers, their data, and a reference that runs them in one process, one
// micro-batch after the other.

#include <torch/types.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"
#include "tessera/pipeline/executor.h"
#include "tessera/schedule/split.h"
#include "tests/ranks.h"

namespace tessera::pipeline::test {

// Returns numbers that depend only on the seed: ranks are threads here and share the torch
// generator.
inline at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  at::Tensor values = at::empty(sizes, at::kFloat);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    values.data_ptr<float>()[i] =
        static_cast<float>((state * 0x2545f4914f6cdd1dull) >> 40) / static_cast<float>(1 << 23) - 1;
  }
  return values;
}

struct Layer {
  std::vector<at::Tensor> params;
  // The first layer reads the micro-batch instead of `x`, the last returns the loss.
  std::function<at::Tensor(const at::Tensor& x, int micro)> forward;
};
using Layers = std::vector<Layer>;

constexpr std::int64_t kSamples = 2, kLength = 3, kVocab = 11;

inline at::Tensor ids(int micro, std::uint64_t seed = 100) {
  return ((numbers({kSamples, kLength}, seed + static_cast<std::uint64_t>(micro)) + 1) *
          (static_cast<double>(kVocab) / 2))
      .to(at::kLong)
      .clamp(0, kVocab - 1);
}

struct NetOptions {
  std::string kind = "linears";
  int layers = 8;
  at::ScalarType dtype = at::kFloat;
  nn::Recompute recompute = nn::Recompute::none;
};

// linears: linears of nn/, each with a different width. blocks: transformer blocks of nn/. torch:
// layers that do not use nn/.
inline Layers make_net(const NetOptions& net) {
  std::uint64_t seed = 1;
  const auto param = [&](at::IntArrayRef sizes) {
    const double fan = static_cast<double>(sizes.back());
    return (numbers(sizes, ++seed) / std::sqrt(fan)).to(net.dtype).set_requires_grad(true);
  };
  const auto width = [&](int i) -> std::int64_t {
    return net.kind == "linears" ? 4 + 3 * (i % 4) : 8;
  };
  Layers layers;
  {
    const at::Tensor table = param({kVocab, width(0)});
    layers.push_back({{table}, [table](const at::Tensor&, int micro) {
                        return torch::embedding(table, ids(micro));
                      }});
  }
  for (int i = 1; i + 1 < net.layers; ++i) {
    const std::int64_t in = width(i - 1), out = width(i);
    Layer layer;
    std::function<at::Tensor(const at::Tensor&)> f;
    if (net.kind == "linears") {
      const at::Tensor w = param({out, in}), b = param({out});
      layer.params = {w, b};
      f = [w, b, i](const at::Tensor& x) {
        return i % 2 == 0 ? nn::linear(x, w, b) : nn::linear_gelu(x, w, b);
      };
    } else if (net.kind == "blocks") {
      const at::Tensor n1 = param({in}), n2 = param({in}), qkv = param({3 * in, in}),
                       proj = param({in, in}), up = param({2 * in, in}), ub = param({2 * in}),
                       down = param({in, 2 * in}), db = param({in});
      layer.params = {n1, n2, qkv, proj, up, ub, down, db};
      f = [=](const at::Tensor& x) {
        const at::Tensor h = nn::layer_norm(x, n1, at::zeros_like(n1));
        const at::Tensor a = nn::linear(nn::attention(nn::linear(h, qkv, {}), 2), proj, {});
        auto [y, sum] = nn::add_layer_norm(x, a, n2, at::zeros_like(n2));
        return sum + nn::linear(nn::linear_gelu(y, up, ub), down, db);
      };
    } else {
      const at::Tensor w = param({out, in, 1}), b = param({out}), v = param({out, out});
      layer.params = {w, b, v};
      f = [=](const at::Tensor& x) {
        const at::Tensor y = torch::conv1d(x.transpose(1, 2), w, b).transpose(1, 2);
        return torch::tanh(torch::linear(torch::relu(y), v)) + x;
      };
    }
    layer.forward = [f, mode = net.recompute](const at::Tensor& x, int) {
      return nn::recompute(mode, f, x);
    };
    layers.push_back(std::move(layer));
  }
  {
    const at::Tensor head = param({kVocab, width(net.layers - 2)});
    layers.push_back({{head}, [head](const at::Tensor& x, int micro) {
                        return nn::linear_cross_entropy(x, head, ids(micro, 900));
                      }});
  }
  return layers;
}

struct Result {
  std::vector<double> losses;
  std::vector<at::Tensor> grads;  // of all parameters, layer by layer
};

inline Result run_alone(const NetOptions& net, int micros, int steps) {
  const Layers layers = make_net(net);
  Result result;
  for (int step = 0; step < steps; ++step) {
    result.losses.clear();
    for (int m = 0; m < micros; ++m) {
      at::Tensor x;
      for (const Layer& layer : layers) x = layer.forward(x, m);
      result.losses.push_back(x.item<double>());
      x.backward();
    }
  }
  for (const Layer& layer : layers) {
    for (const at::Tensor& p : layer.params) result.grads.push_back(p.grad());
  }
  return result;
}

// Returns the layers first to last - 1 as a chunk.
inline Chunk chunk_of(const Layers& layers, int first, int last) {
  return {[layers, first, last](const at::Tensor& input, int micro) {
    at::Tensor x = input;
    for (int i = first; i < last; ++i) x = layers[static_cast<std::size_t>(i)].forward(x, micro);
    return x;
  }};
}

// Splits by parameter count.
inline std::vector<int> bounds_of(const Layers& layers, int stages) {
  std::vector<double> costs;
  for (const Layer& layer : layers) {
    double count = 0;
    for (const at::Tensor& p : layer.params) count += static_cast<double>(p.numel());
    costs.push_back(count);
  }
  return schedule::split(costs, stages);
}

inline std::vector<Chunk> chunks_of(const Layers& layers, const schedule::Schedule& schedule,
                                    int rank) {
  const std::vector<int> bounds = bounds_of(layers, schedule.stage_count());
  std::vector<Chunk> chunks;
  for (int c = 0; c < schedule.chunks; ++c) {
    const auto stage = static_cast<std::size_t>(schedule.stage(rank, c));
    chunks.push_back(chunk_of(layers, bounds[stage], bounds[stage + 1]));
  }
  return chunks;
}

using tessera::over;

}  // namespace tessera::pipeline::test
