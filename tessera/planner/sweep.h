#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/planner/settings.h"

namespace tessera::planner {

// [Note: sweeps] One setting of a plan with several values: "dp=1..64" doubles (1, 2, 4 … and the
// last as it is written), "seq=1024..8192:1024" takes steps, "bucket-size=1MB,25MB" lists. Whatever
// has a unit may have it here. Words are listed: "recompute=none,full". "batch" is micro-batch.
struct PlanSweep {
  std::string setting;
  std::vector<std::string> values;
};
PlanSweep parse_plan_sweep(std::string_view text);  // throws UsageError

struct SweptPlan {
  std::string value;
  std::optional<Plan> plan;  // its numbers, without advice
  std::string refused;       // why there is none
};
// One answer for each value. Throws UsageError where no value can be.
std::vector<SweptPlan> sweep_plans(const PlanSweep& sweep, const Settings& settings,
                                   const Catalogue& catalogue);

std::string to_json(const PlanSweep& sweep, const std::vector<SweptPlan>& rows);
// Memory by category, and the time of a step, beside each other.
std::string plan_sweep_svg(const PlanSweep& sweep, const std::vector<SweptPlan>& rows);

}  // namespace tessera::planner
