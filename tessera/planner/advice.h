#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/plan.h"

// Words of advice, notes and reports.
namespace tessera::planner {

// Formats a number of bytes, limited to 64 bits.
inline std::string size(double bytes) { return format_bytes(std::llround(std::min(bytes, 9e18))); }
inline std::string percent(double share) { return str(std::round(1000 * share) / 10, "%"); }
// Returns "130 GB of 82.6 GB".
inline std::string of_usable(double total, const RunConfig& question) {
  return str(size(total), " of ", size(usable_memory(question.hardware)));
}

// Smallest gain worth reporting, as a fraction of the step.
inline constexpr double kRealGain = 0.02;
// Returns "; sends 8.18 GB instead of 5.45 GB" for a change to `then` bytes, or "" if it does not
// differ.
std::string sending(const Plan& plan, double then);

}  // namespace tessera::planner
