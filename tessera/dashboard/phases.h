#pragma once

#include "tessera/dashboard/run_series.h"

namespace tessera::dashboard {

// Where the time of a step goes, a row for each rank: means of the last steps, of all of them when
// the run is over. Of very many ranks those that are slow and the first ones. Where the file has
// only the rank that writes it, that one.
Json phases_of(const RunSeries& series);

// Ranks that are slow, as the run itself found them; an empty list where it found none.
Json stragglers_of(const RunSeries& series);

}  // namespace tessera::dashboard
