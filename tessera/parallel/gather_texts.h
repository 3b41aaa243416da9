#pragma once

#include <string>
#include <vector>

#include "tessera/comm/group.h"

namespace tessera::parallel {

// Collective. Returns the texts of all ranks, on every rank. `label` names the call in messages.
std::vector<std::string> gather_texts(const comm::Group& group, const std::string& mine,
                                      const char* label);

}  // namespace tessera::parallel
