#pragma once

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// A schedule from the order of each rank's computation: puts a receive before what needs another
// rank's result and a send after what another rank needs.
Schedule with_transfers(std::string name, int micros, std::vector<std::vector<int>> stages,
                        const std::vector<std::vector<Action>>& orders);

}  // namespace tessera::schedule
