#pragma once

#include "tessera/planner/step.h"

namespace tessera::planner {

// [Note: shared cores] Rates of a processor were measured with all ranks of a node busy. Where they
// have fewer cores than threads, a rank that waits for another stage leaves its core to those that
// compute, which are quicker by so much. How many are busy is taken in the mean over the step: as
// long as no core idles, that is exact, since the work of all ranks takes the time of all cores.
// Stretches or shortens the computation of the step's chunks by that, and nothing else.
void share_cores(Step& step, const Hardware& hardware);

}  // namespace tessera::planner
