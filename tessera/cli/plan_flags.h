#pragma once

#include <CLI/CLI.hpp>

#include "tessera/planner/fields.h"

namespace tessera::cli {

// A flag for each field of a question, in the groups of the table; what is given goes to
// `settings`, which must outlive the parsing.
void add_plan_flags(CLI::App& app, planner::Settings& settings);

}  // namespace tessera::cli
