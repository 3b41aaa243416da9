// Mixture of experts as a plain loop over tokens and experts in fp64, with autograd through ATen's
// operations, and layers with the same parameters.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/experts/layer.h"
#include "tessera/kernels/dropout.h"
#include "tessera/nn/pass.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::experts::test {

struct Case {
  LayerOptions layer;
  std::int64_t batch = 2, tokens = 7;
  std::int64_t row_tokens = 0;  // further tokens are padding; 0: there is none
  at::ScalarType type = at::kFloat;

  std::string text() const {
    const Experts& e = layer.experts;
    return tessera::str(e.count, " experts, ", e.per_token, " per token, width ", e.width,
                        ", shared ", e.shared_width, e.shared_gate ? " with gate" : "", ", scores ",
                        name(e.scores), e.normalized ? ", normalized" : "", ", scale ", e.scale,
                        e.selection_bias ? ", selection bias" : "", ", capacity ", e.capacity,
                        ", jitter ", e.jitter, ", losses ", e.balance_loss, " ", e.z_loss,
                        layer.gated ? ", gated " : ", ", name(layer.activation),
                        layer.biases ? ", biases" : "", ", batch ", batch, ", tokens ", tokens,
                        ", row tokens ", row_tokens, ", ", c10::toString(type));
  }
};

inline nn::Pass pass_of(const Case& of) {
  nn::Pass pass;
  pass.row_tokens = of.row_tokens;
  pass.seed = 77;
  pass.first_sample = 5;
  pass.row_weight = 0.25;
  pass.loss_scale = torch::tensor(3.0f);
  return pass;
}

// Fills the parameters with numbers that depend on their names in the whole layer only. Those of
// the router are large enough that experts have clearly different scores.
inline void fill(MixtureOfExperts& layer, const Axes& axes = {}, const Coordinate& at = {}) {
  const at::NoGradGuard no_grad;
  const std::vector<ParamSpec> specs = tensor_parallel::find_specs(*layer);
  const auto params = layer->named_parameters();
  for (const ParamSpec& spec : specs) {
    const at::Tensor& param = params[spec.name];
    const double deviation = 1 / std::sqrt(static_cast<double>(layer->options().hidden));
    const at::Tensor wide = torch::zeros(param.sizes());
    tensor_parallel::fill_normal(wide, spec, axes, at, 9, deviation);
    at::Tensor(param).copy_(wide);
  }
  for (auto& buffer : layer->named_buffers()) {
    const at::Tensor values = buffer.value();
    for (std::int64_t e = 0; e < values.size(0); ++e) {
      values[e] = 0.2f * Philox(4, 4).normal(static_cast<std::uint64_t>(e));
    }
  }
}

inline MixtureOfExperts make_layer(const Case& of, Ranks ranks = {}, const Axes& axes = {},
                                   const Coordinate& at = {}) {
  LayerOptions options = of.layer;
  options.tensors = at::TensorOptions(of.type);
  MixtureOfExperts layer(std::move(ranks), options);
  fill(layer, axes, at);
  return layer;
}

struct Result {
  at::Tensor y, loss;                        // the loss is that of all rows, times their factors
  std::map<std::string, at::Tensor> params;  // with gradients after backward
  std::vector<std::vector<std::int64_t>> chosen;  // experts of each token, dropped ones as ~number
  Load load;
};

inline at::Tensor activated(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh: return at::gelu(x, "tanh");
    case Activation::gelu: return at::gelu(x);
    case Activation::relu: return at::relu(x);
    case Activation::silu: return x * at::sigmoid(x);
  }
  return {};
}

// Returns the MLP `name` of one token.
inline at::Tensor mlp(const Result& result, const std::string& name, const LayerOptions& options,
                      const at::Tensor& x) {
  const auto& p = result.params;
  at::Tensor h = at::mv(p.at(name + ".fc.weight"), x);
  if (options.biases) h = h + p.at(name + ".fc.bias");
  if (options.gated) {
    const auto parts = h.chunk(2, 0);
    h = activated(parts[0], options.activation) * parts[1];
  } else {
    h = activated(h, options.activation);
  }
  h = at::mv(p.at(name + ".proj2.weight"), h);
  return options.biases ? h + p.at(name + ".proj2.bias") : h;
}

// Runs the reference for x [B, T, hidden] in fp64 with the parameters of a layer on one rank.
// `training`: with jitter.
inline Result reference(const Case& of, MixtureOfExperts& layer, const at::Tensor& x,
                        bool training = true) {
  const LayerOptions& options = of.layer;
  const Experts& experts = options.experts;
  const nn::Pass pass = pass_of(of);
  Result result;
  for (const auto& param : layer->named_parameters()) {
    result.params[param.key()] = param.value().detach().to(torch::kDouble).clone().requires_grad_();
  }
  const std::int64_t row_tokens = of.row_tokens > 0 ? of.row_tokens : of.tokens;
  const double limit =
      experts.capacity > 0
          ? std::ceil(experts.capacity * static_cast<double>(row_tokens * experts.per_token) /
                      static_cast<double>(experts.count))
          : 1e18;
  result.load.tokens = torch::zeros({experts.count}, torch::kLong);
  result.loss = torch::zeros({}, torch::kDouble);
  std::vector<at::Tensor> ys;
  for (std::int64_t b = 0; b < of.batch; ++b) {
    std::vector<std::int64_t> used(static_cast<std::size_t>(experts.count));
    at::Tensor balance_sum = torch::zeros({experts.count}, torch::kDouble);
    at::Tensor z = torch::zeros({}, torch::kDouble);
    const Philox random(
        pass.seed, kernels::stream_of_sample(stream_of(options.label + ".jitter"),
                                             pass.first_sample + static_cast<std::uint64_t>(b)));
    for (std::int64_t t = 0; t < of.tokens; ++t) {
      const at::Tensor token = x[b][t];
      at::Tensor y = torch::zeros({options.hidden}, torch::kDouble);
      std::vector<std::int64_t> chosen;
      if (t < row_tokens) {
        at::Tensor in = token;
        if (training && experts.jitter > 0) {
          const at::Tensor factors = torch::empty({options.hidden}, torch::kDouble);
          for (std::int64_t c = 0; c < options.hidden; ++c) {
            const double u = random.uniform(static_cast<std::uint64_t>(t * options.hidden + c));
            factors[c] = 1 - experts.jitter + 2 * experts.jitter * u;
          }
          in = token * factors;
        }
        const at::Tensor logits = at::mv(result.params["router.weight"], in);
        const at::Tensor scores =
            experts.scores == RouterScores::softmax ? at::softmax(logits, 0) : at::sigmoid(logits);
        const at::Tensor p = scores / scores.sum();
        at::Tensor order = scores.detach();
        if (experts.selection_bias) {
          order = order + layer->named_buffers()["selection_bias"].to(torch::kDouble);
        }
        std::vector<std::int64_t> numbers(static_cast<std::size_t>(experts.count));
        std::iota(numbers.begin(), numbers.end(), 0);
        const auto* values = order.const_data_ptr<double>();
        std::stable_sort(numbers.begin(), numbers.end(),
                         [&](std::int64_t a, std::int64_t c) { return values[a] > values[c]; });
        numbers.resize(static_cast<std::size_t>(experts.per_token));
        at::Tensor total = torch::zeros({}, torch::kDouble);
        for (const std::int64_t e : numbers) total = total + scores[e];
        for (const std::int64_t e : numbers) {
          balance_sum[e] += 1;
          const bool dropped = static_cast<double>(used[static_cast<std::size_t>(e)]++) >= limit;
          chosen.push_back(dropped ? ~e : e);
          if (dropped) {
            result.load.dropped += 1;
            continue;
          }
          result.load.tokens[e] += 1;
          const at::Tensor weight = (experts.normalized ? scores[e] / total : scores[e]);
          y = y + experts.scale * weight * mlp(result, std::to_string(e), options, token);
        }
        const at::Tensor lse = at::logsumexp(logits, 0);
        z = z + lse * lse / static_cast<double>(row_tokens);
        result.load.routed += 1;
        result.load.entropy -= (p * p.log()).sum().item<double>();
      }
      if (experts.shared_width > 0) {
        at::Tensor shared = mlp(result, "shared", options, token);
        if (experts.shared_gate) {
          shared =
              shared * at::sigmoid(at::mv(result.params["shared_gate.weight"], token)).squeeze(0);
        }
        y = y + shared;
      }
      ys.push_back(y);
      result.chosen.push_back(chosen);
    }
    // Again for the probabilities, because counts are known only now.
    at::Tensor balance = torch::zeros({}, torch::kDouble);
    for (std::int64_t t = 0; t < row_tokens; ++t) {
      at::Tensor in = x[b][t];
      if (training && experts.jitter > 0) {
        const at::Tensor factors = torch::empty({options.hidden}, torch::kDouble);
        for (std::int64_t c = 0; c < options.hidden; ++c) {
          const double u = random.uniform(static_cast<std::uint64_t>(t * options.hidden + c));
          factors[c] = 1 - experts.jitter + 2 * experts.jitter * u;
        }
        in = in * factors;
      }
      const at::Tensor logits = at::mv(result.params["router.weight"], in);
      const at::Tensor scores =
          experts.scores == RouterScores::softmax ? at::softmax(logits, 0) : at::sigmoid(logits);
      balance = balance + (scores / scores.sum() * balance_sum).sum();
    }
    const auto n = static_cast<double>(row_tokens);
    balance = balance * static_cast<double>(experts.count) /
              (static_cast<double>(experts.per_token) * n * n);
    result.loss = result.loss + experts.balance_loss * balance + experts.z_loss * z;
    result.load.balance += balance.item<double>();
    result.load.z += z.item<double>();
    result.load.rows += 1;
  }
  result.y = ys.empty() ? torch::zeros({of.batch, of.tokens, options.hidden}, torch::kDouble)
                        : at::stack(ys).view({of.batch, of.tokens, options.hidden});
  return result;
}

// Largest difference relative to the largest expected value.
inline double difference(const at::Tensor& got, const at::Tensor& wanted) {
  EXPECT_EQ(got.sizes(), wanted.sizes());
  if (got.sizes() != wanted.sizes()) return 1;
  if (got.numel() == 0) return 0;
  const at::Tensor exact = wanted.to(torch::kDouble);
  return (got.to(torch::kDouble) - exact).abs().max().item<double>() /
         (exact.abs().max().item<double>() + 1e-30);
}

inline void expect_equal_loads(const Load& got, const Load& wanted, double tolerance,
                               const std::string& text) {
  EXPECT_TRUE(at::equal(got.tokens, wanted.tokens)) << text;
  EXPECT_EQ(got.dropped, wanted.dropped) << text;
  EXPECT_EQ(got.routed, wanted.routed) << text;
  const auto near = [&](double a, double b, const char* which) {
    EXPECT_NEAR(a, b, tolerance * (1 + std::abs(b))) << which << " of " << text;
  };
  near(got.entropy, wanted.entropy, "entropy");
  near(got.balance, wanted.balance, "balance");
  near(got.z, wanted.z, "z");
  near(got.rows, wanted.rows, "rows");
}

}  // namespace tessera::experts::test
