#pragma once

#include <string>
#include <vector>

#include "tessera/planner/plan.h"

namespace tessera::planner {

// Data, tensor and pipeline parallelism for one model, one number of devices and one global batch,
// each alone and at its best, and the best mix of them.
struct Way {
  std::string name;     // "dp 8", "dp 8, ZeRO-3", "tp 8", "pp 8", "best mix"
  std::string refused;  // why it cannot be; then there is no plan
  Plan plan;            // the fastest that fits; where none fits, the one that needs least
};
struct WaysCompared {
  std::vector<Way> ways;   // the last is the best mix
  std::string conclusion;  // sentences that follow from the numbers
};
// What the question leaves open is chosen for each way: micro-batch, recomputation, schedule; the
// axes and the stage are the way's own. Throws UsageError for a model known by its size alone.
// most: configurations that the mix may try, see SearchQuestion.
WaysCompared compare_ways(const Question& question, std::int64_t most = 0);

std::string to_json(const WaysCompared& compared);
std::string ways_svg(const WaysCompared& compared);

}  // namespace tessera::planner
