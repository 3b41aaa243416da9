#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// Use of the experts of one layer, over all ranks and some steps.
struct ExpertLoad {
  std::string layer;                 // "blocks.3.experts"
  std::vector<std::int64_t> tokens;  // sent to each expert, without the dropped ones
  double dropped = 0;         // share of the pairs of a token and an expert beyond the capacity
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
