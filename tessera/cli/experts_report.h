#pragma once

#include <string>

#include "tessera/planner/expert_costs.h"

// Experts of a model in the reports of plan, simulate and explain.
namespace tessera::cli {

// Describes the experts, their rows and their exchange.
std::string experts_text(const planner::RunConfig& resolved, const planner::ExpertCosts& costs);
// Lists the state of experts and the memory of a rank by ep; "" if there is only one choice.
std::string experts_table(const planner::Plan& plan);

}  // namespace tessera::cli
