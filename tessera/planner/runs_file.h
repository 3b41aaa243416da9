#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/score.h"
#include "tessera/planner/settings.h"

namespace tessera::planner {

// Measured runs: a CSV file whose first line names fields, with underscores or dashes, and step_ms.
// A cell with a comma stands in double quotes; an empty one is left out, and `defaults` stands for
// what a row leaves out. Throws UsageError with file and line.
std::vector<ScoredRow> read_runs(const std::string& path, const Settings& defaults,
                                 const Catalogue& catalogue);
std::vector<ScoredRow> parse_runs(std::string_view text, const std::string& where,
                                  const Settings& defaults, const Catalogue& catalogue);

}  // namespace tessera::planner
