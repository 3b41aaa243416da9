#pragma once

#include <vector>

#include "tessera/planner/question.h"

namespace tessera::planner {

// The largest batch and the largest model that fit, for every ZeRO stage and for dp 1, 2, 4 … up to
// a node or to the one asked for.
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
BatchLimits largest_batches(const Question& settled);

// Heads of the base's size are added, and layers in proportion, so the model keeps its form. A
// model known by its size alone is bounded by its state.
struct ModelLimit {
  int zero = 0;
  int dp = 1;
  ModelShape model;   // its layers are 0 where nothing fits, or where only the size is known
  double params = 0;  // likewise
  double memory = 0;
};
struct ModelLimits {
  ModelLimit asked;
  std::vector<ModelLimit> rows;
};
ModelLimits largest_models(const Question& settled);

}  // namespace tessera::planner
