#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"

namespace tessera::planner {

// One ZeRO stage of a question, beside the others.
struct StageAnswer {
  int stage = 0;
  std::string name;  // "DDP", "ZeRO-1" …
  Sharding sharded;  // gradients: not where --grad-reduce keeps them whole
  Plan plan;         // its numbers, without advice

  // Bytes that a rank sends along dp in a step, by when; together they are plan.traffic.dp.
  double forward = 0;    // gathers parameters (stage 3)
  double backward = 0;   // reduces gradients, and gathers parameters again (stage 3)
  double optimizer = 0;  // gathers the updated parameters (stages 1, 2)
  double sent() const { return forward + backward + optimizer; }

  // State over all ranks together, against one copy of it: plain data parallelism has dp of them.
  double held = 0, one_copy = 0;
  double copies() const { return held / one_copy; }
};

// Stages 0 to 3 of a settled question, whatever stage it asks for.
std::vector<StageAnswer> compare_stages(const Question& settled);

// What a data-parallel rank owns of what a stage shards: parameters [first, last) of its tp · pp
// part, counted as if all were one row. Parts differ by one parameter at most.
struct OwnedPart {
  std::int64_t first = 0, last = 0;
};
OwnedPart owned_part(std::int64_t params, int dp, int rank);

std::string to_json(const std::vector<StageAnswer>& stages);
std::string stages_svg(const std::vector<StageAnswer>& stages);

}  // namespace tessera::planner
