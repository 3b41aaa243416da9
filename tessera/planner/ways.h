#pragma once

#include <string>
#include <vector>

#include "tessera/planner/json.h"

namespace tessera::planner {

// Best configuration of one kind of parallelism (data, tensor, pipeline or a mix) for a given
// model, number of devices and global batch.
struct Way {
  std::string name;     // "dp 8", "dp 8, ZeRO-3", "tp 8", "pp 8", "best mix"
  std::string refused;  // reason it is not possible; then there is no plan
  Plan plan;            // the fastest that fits, or the one that needs least if none fits
};
struct WaysCompared {
  std::vector<Way> ways;   // the last is the best mix
  std::string conclusion;  // summary in sentences
};
// Compares them. Micro-batch, recomputation and schedule are chosen for each if the question leaves
// them open; axes and stage are given by each kind. Throws UsageError if only the model's size is
// known. `most`: limit on configurations for the mix, as in SearchRequest.
WaysCompared compare_ways(const RunConfig& question, std::int64_t most = 0);

Json tree_of(const WaysCompared& compared);
std::string to_json(const WaysCompared& compared);
std::string ways_svg(const WaysCompared& compared);

}  // namespace tessera::planner
