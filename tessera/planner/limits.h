#pragma once

#include <vector>

#include "tessera/planner/run_config.h"

namespace tessera::planner {

// Largest batch and largest model that fit, for every ZeRO stage and for dp 1, 2, 4 … up to a node
// or to the dp of the question.
struct BatchLimit {
  int zero = 0;
  int dp = 1;
  std::int64_t micro_batch = 0;   // per GPU; 0: not even one sequence fits
  std::int64_t global_batch = 0;  // micro_batch · dp
  double memory = 0;              // bytes at that batch
};
struct BatchLimits {
  BatchLimit asked;  // for the stage and dp of the question
  std::vector<BatchLimit> rows;
};
BatchLimits largest_batches(const RunConfig& resolved);

// Largest model of the same proportions: heads of the base's size are added, and layers in
// proportion. If only the size is known, its state is the limit.
struct ModelLimit {
  int zero = 0;
  int dp = 1;
  ModelShape model;   // has 0 layers if nothing fits or only the size is known
  double params = 0;  // 0 if nothing fits
  double memory = 0;
};
struct ModelLimits {
  ModelLimit asked;
  std::vector<ModelLimit> rows;
};
ModelLimits largest_models(const RunConfig& resolved);

}  // namespace tessera::planner
