#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace tessera::train {

// Result of an evaluation on validation data.
struct Evaluation {
  double loss_sum = 0;      // sum of the cross entropies, in nats
  std::int64_t tokens = 0;  // number of predicted tokens
  double bytes = 0;         // bytes of text that the tokens encode; 0: unknown
  double seconds = 0;       // duration of the evaluation

  double loss() const { return tokens > 0 ? loss_sum / static_cast<double>(tokens) : 0; }
  double perplexity() const { return std::exp(loss()); }
  double bits_per_byte() const { return bytes > 0 ? loss_sum / bytes / std::log(2.0) : 0; }
};
std::string to_json(const Evaluation& evaluation);
// Returns "loss 3.2871, perplexity 26.77, 1.012 bits per byte (12,288 tokens)".
std::string describe(const Evaluation& evaluation);

}  // namespace tessera::train
