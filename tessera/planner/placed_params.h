#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/planner/run_config.h"

namespace tessera::planner {

struct Programs;

// Parameter in the engine's layout, in elements.
struct Placed {
  std::int64_t padded = 0;  // total over all ranks that shard it
  int model_chunk = 0;      // index of its model chunk
  std::int64_t layer = -1;  // -1: outside blocks
  int shards = 1;           // ranks that shard it: fewer for experts
  bool down = false;        // second matrix of an MLP, whose gradient is the first of its block
  bool frozen = false;
};

// [Note: placement] Parameters in the engine's order: for each chunk, first those outside blocks,
// then block by block.
std::vector<Placed> placed_params(const RunConfig& run, const Coordinate& at,
                                  const Programs& programs);

// Returns the size in bytes at which a bucket is closed: [Note: bucket size]. Experts that other
// ranks do not have are not counted, so that it is the same on all ranks.
double bucket_limit(const RunConfig& run, const std::vector<Placed>& params);

// Returns the bytes of the buffers for the units that stage 3 gathers.
std::int64_t gathered_buffers(const RunConfig& run, const Coordinate& at,
                              const std::vector<Placed>& params);

}  // namespace tessera::planner
