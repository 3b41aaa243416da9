#pragma once

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// A step without a pipeline, all replicas piece by piece: [Note: lockstep]. What Run says by
// events, in a small part of the time.
Result run_group(const Scenario& scenario, int replicas);

}  // namespace tessera::simulator
