#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/fields.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {

// [Note: sweeps] One plan setting with several values: "dp=1..64" doubles (1, 2, 4 … and the last
// value as written), "seq=1024..8192:1024" uses steps, "bucket-size=1MB,25MB" is a list. Values may
// have units. Words must be listed: "recompute=none,full". "batch" means micro-batch.
struct PlanSweep {
  std::string setting;
  std::vector<std::string> values;
};
PlanSweep parse_plan_sweep(std::string_view text);  // throws UsageError

struct SweptPlan {
  std::string value;
  std::optional<Plan> plan;   // without advice
  std::string refused;        // reason, if there is no plan
  std::string refused_field;  // UsageError::field()
};
// Returns one row for each value. Throws UsageError if no value is valid.
std::vector<SweptPlan> sweep_plans(const PlanSweep& sweep, const RunConfig& settings,
                                   const Catalog& catalog);

std::string to_json(const PlanSweep& sweep, const std::vector<SweptPlan>& rows);
// Draws memory by category and step time side by side.
std::string plan_sweep_svg(const PlanSweep& sweep, const std::vector<SweptPlan>& rows);

}  // namespace tessera::planner
