#pragma once

#include "tessera/dashboard/run_series.h"

namespace tessera::dashboard {

// Returns the time of each phase of a step, one row per rank: means over the last steps, or over
// all steps when the run has ended. With very many ranks, the slow ones and the first ones; if the
// file has no ranks, the rank that writes it.
Json phases_of(const RunSeries& series);

// Returns the slow ranks that the run itself found; an empty list if none.
Json stragglers_of(const RunSeries& series);

}  // namespace tessera::dashboard
