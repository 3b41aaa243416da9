#pragma once

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Returns a schedule from the compute actions of each rank, `orders`. Inserts a receive before each
// action that needs a result of another rank, and a send after each result that another rank needs.
Schedule with_transfers(std::string name, int micros, std::vector<std::vector<int>> stages,
                        const std::vector<std::vector<Action>>& orders);

}  // namespace tessera::schedule
