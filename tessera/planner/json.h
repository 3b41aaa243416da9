#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/limits.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/score.h"
#include "tessera/planner/search.h"
#include "tessera/planner/software.h"

// Questions and answers of the planner as JSON. Each answer is one line.
namespace tessera::planner {

using Json = nlohmann::ordered_json;

// Returns a JSON value (nlohmann::json or ordered_json) as a flag's argument.
template <typename Value>
std::string setting_text(const std::string& key, const Value& value) {
  if (value.is_string()) return value.template get<std::string>();
  if (value.is_boolean()) return value.template get<bool>() ? "true" : "false";
  if (value.is_number()) return value.dump();
  throw UsageError(
      str(quote(key), ": got ", value.type_name(), "; must be a number, a string, true or false"),
      key);
}

// Reads one JSON object whose keys are the settings with underscores: {"model":"gpt2-xl","dp":8}.
// Ignores nulls. Throws UsageError for invalid input.
void read_json(RunConfig& settings, std::string_view object);

// Return results as a tree, to which a caller may add. `advised`: with remedy, advice and notes.
Json tree_of(const Plan& plan, bool advised = true);
Json tree_of(const SearchResult& result);
// Return parts of a plan; what is unknown is null.
Json memory_json(const Plan& plan);
Json fits_json(const Plan& plan);
Json time_json(const Plan& plan);
// Returns bytes or a count: an integer unless it exceeds 64 bits.
Json whole_json(double value);
// Prints a tree, and replaces invalid UTF-8 in quoted input.
std::string one_line(const Json& json);

// Returns the placement of the groups of a run's axes.
std::string topology_json(const RunConfig& resolved);
std::string to_json(const BatchLimits& limits);
std::string to_json(const ModelLimits& limits);
std::string to_json(const MegatronReport& report);
std::string to_json(const Score& score);
std::string error_json(std::string_view message);

// Answers a line of --questions; errors are returned as JSON. `defaults` supplies missing settings.
std::string answer_line(const RunConfig& defaults, const Catalog& catalog, std::string_view line);

}  // namespace tessera::planner
