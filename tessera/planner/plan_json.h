#pragma once

#include <string>
#include <string_view>

#include "tessera/planner/fields.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/search.h"

namespace tessera::planner {

// Returns a plan as one line of JSON, as `tessera plan --json` prints it.
std::string to_json(const Plan& plan);
// Returns the result of a search, as `tessera plan --search --json` prints it.
std::string to_json(const SearchResult& result);

// Plans these settings. Throws UsageError if look_up() or make_plan() does.
std::string plan_json(const RunConfig& settings, const Catalog& catalog = Catalog());
// As above, with the settings as one JSON object, whose keys are the flags of `tessera plan` with
// underscores: plan_json(R"({"model": "gpt2-xl", "dp": 8, "zero": 1})"). Nulls are ignored.
std::string plan_json(std::string_view settings, const Catalog& catalog = Catalog());

}  // namespace tessera::planner
