#pragma once

namespace tessera::planner {

// Duration, energy and price of a training.
struct TrainingCost {
  double seconds = 0;
  double gpu_hours = 0;
  double kwh = 0;
  double money = 0;
};
// Returns the cost of training on `tokens` tokens with `gpus` devices that together process
// `tokens_per_s`. `watts` and `price_per_hour` are those of one device.
TrainingCost training_cost(double tokens, double tokens_per_s, double gpus, double watts,
                           double price_per_hour);

}  // namespace tessera::planner
