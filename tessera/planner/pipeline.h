#pragma once

#include <cstddef>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::planner {

// Bytes of what one micro-batch of b·s tokens passes from stage to stage, and its gradient back:
// b·s·h elements, cut by tp where sequences are.
inline double boundary_bytes(double tokens, double hidden, double element_bytes,
                             int sequence_parallel = 1) {
  return tokens * hidden * element_bytes / sequence_parallel;
}

// Bytes a rank of a pipeline sends per step: per micro-batch, the activation of each of its stages
// to the next one and the gradient to the one before, where these are on other ranks.
// boundaries[b]: bytes between the stages b and b + 1.
inline double pipeline_bytes(const schedule::Schedule& schedule, int rank,
                             const std::vector<double>& boundaries) {
  double bytes = 0;
  for (int c = 0; c < schedule.chunks; ++c) {
    const int stage = schedule.stage(rank, c);
    if (stage + 1 < schedule.stage_count() && schedule.home(stage + 1).rank != rank) {
      bytes += boundaries[static_cast<std::size_t>(stage)];
    }
    if (stage > 0 && schedule.home(stage - 1).rank != rank) {
      bytes += boundaries[static_cast<std::size_t>(stage - 1)];
    }
  }
  return bytes * schedule.micros;
}
// The same where all boundaries are alike. With stages dealt out in turn, a rank in the middle
// sends 2 · chunks · micro-batches of them, the first and the last one `micros` less.
inline double pipeline_bytes(const schedule::Schedule& schedule, int rank, double boundary) {
  const int count = schedule.stage_count() - 1;
  return pipeline_bytes(schedule, rank,
                        std::vector<double>(static_cast<std::size_t>(count), boundary));
}

}  // namespace tessera::planner
