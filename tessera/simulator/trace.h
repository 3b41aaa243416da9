#pragma once

#include <string>

#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// Returns the spans of a result as JSON for chrome://tracing and Perfetto: a process per rank, with
// lanes for computation, data-parallel collectives and messages.
std::string trace_json(const Scenario& scenario, const Result& result);

}  // namespace tessera::simulator
