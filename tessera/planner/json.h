#pragma once

#include <string>
#include <string_view>

#include "tessera/planner/json_text.h"
#include "tessera/planner/limits.h"
#include "tessera/planner/megatron.h"
#include "tessera/planner/plan_json.h"
#include "tessera/planner/score.h"

// The planner's questions and answers as JSON, each answer on one line.
namespace tessera::planner {

// One JSON object whose keys are the fields with underscores: {"model":"gpt2-xl","dp":8}. Throws
// UsageError; nulls are left out.
void read_json(Settings& settings, std::string_view object);

// Memory, fit and time of a plan alone, as members of the object that is open.
void put_numbers(JsonText& out, const Plan& plan);
// The text of one JSON object with the members of another behind its own, neither of them empty:
// parsing what was just printed would take longer than all the rest.
std::string merged(std::string object, std::string_view more);
// Where the groups of a run's axes lie.
std::string topology_json(const Question& settled);
std::string to_json(const BatchLimits& limits);
std::string to_json(const ModelLimits& limits);
std::string to_json(const MegatronReport& report);
std::string to_json(const Score& score);
std::string error_json(std::string_view message);

// What a line of --questions is answered with, whatever it holds; `defaults` stands for what it
// leaves out.
std::string answer_line(const Settings& defaults, const Catalogue& catalogue,
                        std::string_view line);

}  // namespace tessera::planner
