#pragma once

#include "tessera/comm/group.h"
#include "tessera/schedule/schedule.h"

namespace tessera::pipeline {

// The group of the ranks with the first and the last stage, which share an embedding. Collective
// over these two; ranks between them, and a rank that has both stages, get a group of their own.
comm::Group tied_group(const comm::Group& pp, const schedule::Schedule& schedule);

}  // namespace tessera::pipeline
