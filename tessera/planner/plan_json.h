#pragma once

#include <string>
#include <string_view>

#include "tessera/planner/plan.h"
#include "tessera/planner/search.h"
#include "tessera/planner/settings.h"

namespace tessera::planner {

// Plans as JSON, each on one line: what `tessera plan --json` prints.
std::string to_json(const Plan& plan);
// The result of a search: what `tessera plan --search --json` prints.
std::string to_json(const SearchResult& result);

// The plan of these settings. Throws UsageError where Settings::question() or make_plan() does.
std::string plan_json(const Settings& settings, const Catalogue& catalogue = Catalogue());
// The same of settings given as one JSON object, whose keys are the flags of `tessera plan` with
// underscores: plan_json(R"({"model": "gpt2-xl", "dp": 8, "zero": 1})"). Nulls are left out.
std::string plan_json(std::string_view settings, const Catalogue& catalogue = Catalogue());

}  // namespace tessera::planner
