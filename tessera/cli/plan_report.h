#pragma once

#include <string>
#include <vector>

#include "tessera/planner/limits.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/score.h"
#include "tessera/planner/search.h"
#include "tessera/planner/software.h"
#include "tessera/planner/sweep.h"

// Reports of the planner for a terminal.
namespace tessera::cli {

std::string report(const planner::Plan& plan);
std::string report(const planner::SearchResult& result);
std::string report(const planner::BatchLimits& limits, const planner::RunConfig& question);
std::string report(const planner::ModelLimits& limits, const planner::RunConfig& question);
std::string report(const planner::MegatronReport& report);
std::string report(const planner::Score& score, std::size_t worst);
std::string report(const planner::PlanSweep& sweep, const std::vector<planner::SweptPlan>& rows);
std::string list_models();
std::string list_hardware(const planner::Catalog& catalog);

}  // namespace tessera::cli
