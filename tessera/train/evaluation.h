#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace tessera::train {

// How well a model predicts tokens that it may not have seen.
struct Evaluation {
  double loss_sum = 0;      // of the cross entropies, in nats
  std::int64_t tokens = 0;  // that were predicted
  double bytes = 0;         // of text that they stand for; 0: not known
  double seconds = 0;       // that it took

  double loss() const { return tokens > 0 ? loss_sum / static_cast<double>(tokens) : 0; }
  double perplexity() const { return std::exp(loss()); }
  double bits_per_byte() const { return bytes > 0 ? loss_sum / bytes / std::log(2.0) : 0; }
};
std::string to_json(const Evaluation& evaluation);
// "loss 3.2871, perplexity 26.77, 1.012 bits per byte (12,288 tokens)"
std::string describe(const Evaluation& evaluation);

}  // namespace tessera::train
