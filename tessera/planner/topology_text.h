#pragma once

#include <string>

#include "tessera/planner/question.h"

namespace tessera::planner {

// The network of a run, what the groups of each axis have of it, and which rank of which axis is
// where, for the first nodes.
std::string topology_text(const Question& settled);
std::string topology_svg(const Question& settled);

}  // namespace tessera::planner
