#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Function of an MLP, between its matrices or on its gate. `silu` is for gates only.
enum class Activation : std::uint8_t { gelu_tanh, gelu, relu, silu };
// Returns the name in checkpoints and messages.
const char* name(Activation activation);

// Scores of a router: softmax over all experts, or the sigmoid of each logit.
enum class RouterScores : std::uint8_t { softmax, sigmoid };
// Returns the name in messages.
const char* name(RouterScores scores);

// [Note: experts] Mixture of experts (Shazeer et al., 2017): a layer has `count` MLPs instead of
// one, and a linear without bias, the router, selects `per_token` of them for each token:
//   y = scale · Σ w_e · expert_e(x) over the selected experts, + shared(x)
// The w_e are the scores of the selected experts, divided by their sum if `normalized`.
struct Experts {
  std::int64_t count = 0;      // 0: an ordinary MLP
  std::int64_t per_token = 0;  // selected experts of a token
  std::int64_t width = 0;      // hidden width of one expert
  // Hidden width of the shared expert, which processes every token; several shared experts are one
  // of their total width. 0: none.
  std::int64_t shared_width = 0;
  bool shared_gate = false;  // sigmoid(linear(x)), one number per token, multiplies shared(x)
  RouterScores scores = RouterScores::softmax;
  bool normalized = true;
  double scale = 1;
  // The experts are selected by score + bias, and weighted by the score alone. The biases are a
  // buffer, not trained: after each step they move by bias_rate towards even loads.
  bool selection_bias = false;
  double bias_rate = 0;
  std::int64_t dense_layers = 0;  // number of first layers with an ordinary MLP
  double balance_loss = 0;        // factor of the load-balancing loss
  double z_loss = 0;              // factor of the mean of (log Σ exp(logits))²
  double jitter = 0;  // the router's input is multiplied by uniform numbers in [1 - j, 1 + j]
  // Tokens that an expert accepts, as a multiple of the mean; further ones are dropped. 0: no
  // limit.
  double capacity = 0;

  bool any() const { return count > 0; }
  bool operator==(const Experts&) const = default;
};

// Load of the experts of one layer, over all ranks and some steps.
struct ExpertLoad {
  std::string layer;                 // "blocks.3.experts"
  std::vector<std::int64_t> tokens;  // sent to each expert, without the dropped ones
  double dropped = 0;         // fraction of the pairs of a token and an expert beyond the capacity
  double entropy = 0;         // mean over the tokens of the router's entropy, in nats
  double balance = 0, z = 0;  // means over the rows: [Note: balance] in experts/layer.h

  // Tokens of the busiest expert over the mean: 1 if all have as many.
  double imbalance() const {
    std::int64_t most = 0, sum = 0;
    for (const std::int64_t count : tokens) most = std::max(most, count), sum += count;
    return sum > 0 ? static_cast<double>(most) * static_cast<double>(tokens.size()) /
                         static_cast<double>(sum)
                   : 1;
  }
};

}  // namespace tessera
