#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/planner/plan.h"

// What advice and remedies are made of.
namespace tessera::planner {

// Beyond 64 bits there is nothing to tell apart.
inline std::string size(double bytes) { return format_bytes(std::llround(std::min(bytes, 9e18))); }
inline std::string percent(double share) { return str(std::round(1000 * share) / 10, "%"); }

// The question with a change, and what it would need.
struct Instead {
  Question question;
  double total;
  bool fits;
  bool runs;  // it fits, and its software has it: [Note: what software lacks]
};
Instead instead(const Question& settled, const std::function<void(Question&)>& change);
Instead at_stage(const Question& settled, int stage);
Instead recomputing(const Question& settled, Recompute what);

std::string of_usable(double total, const Question& question);  // "130 GB of 82.6 GB"
// The least change that makes it fit, or what to cut where none does.
std::string what_would_fit(const Question& settled);

}  // namespace tessera::planner
