#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/json.h"

namespace tessera::planner {

// Result for one ZeRO stage of a question.
struct StageAnswer {
  int stage = 0;
  std::string name;  // "DDP", "ZeRO-1" …
  Sharding sharded;  // `grads` is false if --grad-reduce keeps whole gradients
  Plan plan;         // without advice

  // Bytes that a rank sends along dp in each phase of a step. Their sum is the dp part of
  // plan.traffic.
  double forward = 0;    // parameter gathers (stage 3)
  double backward = 0;   // gradient reductions, and parameter gathers (stage 3)
  double optimizer = 0;  // gathers of the updated parameters (stages 1 and 2)
  double sent() const { return forward + backward + optimizer; }

  // Bytes of state on all ranks together, and of one copy. Plain data parallelism holds dp copies,
  // of experts dp / ep.
  double held = 0, one_copy = 0;
  double copies() const { return held / one_copy; }
};

// Plans stages 0 to 3 of a resolved question; its own stage is ignored.
std::vector<StageAnswer> compare_stages(const RunConfig& resolved);

// Parameters [first, last) of a data-parallel rank's shard, as indices into the flattened
// parameters of its tp and pp rank. Shards differ by at most one parameter.
struct OwnedRange {
  std::int64_t first = 0, last = 0;
};
OwnedRange owned_range(std::int64_t params, int dp, int rank);

Json tree_of(const std::vector<StageAnswer>& stages);
std::string to_json(const std::vector<StageAnswer>& stages);
std::string stages_svg(const std::vector<StageAnswer>& stages);

}  // namespace tessera::planner
