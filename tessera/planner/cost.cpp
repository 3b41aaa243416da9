#include "tessera/planner/cost.h"

namespace tessera::planner {

TrainingCost training_cost(double tokens, double tokens_per_s, double gpus, double watts,
                           double price_per_hour) {
  TrainingCost cost;
  cost.seconds = tokens / tokens_per_s;
  cost.gpu_hours = gpus * cost.seconds / 3600;
  cost.kwh = cost.gpu_hours * watts / 1000;
  cost.money = cost.gpu_hours * price_per_hour;
  return cost;
}

}  // namespace tessera::planner
