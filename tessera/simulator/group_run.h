#pragma once

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// Simulates a step without a pipeline, all replicas piece by piece: [Note: lockstep]. Gives the
// result of Run without events, in a fraction of the time.
Result run_group(const Scenario& scenario, int replicas);

}  // namespace tessera::simulator
