#pragma once

#include <vector>

#include "tessera/planner/pipeline_time.h"
#include "tessera/planner/step.h"

namespace tessera::planner {

// What data parallelism makes of a pipeline rank's computation, as if the rank waited for nothing
// else: total = late + micros · micro + after.
struct RankClock {
  double total = 0;  // of the step, from its begin to the end of the last collective
  RankTime micro;    // of a micro-batch in the middle, with what it waits and is slowed down
  double late = 0;   // that the first forward takes longer than those in the middle
  double after = 0;  // that the step goes on after the last micro-batch of that length
};
RankClock rank_clock(const Step& step, const Places& places, const std::vector<StepChunk>& chunks);

}  // namespace tessera::planner
