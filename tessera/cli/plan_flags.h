#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tessera/planner/fields.h"
#include "tessera/planner/hardware.h"

namespace tessera::cli {

// Adds a flag for each row of [Note: run fields], in its group. Values are passed to `take` in the
// order of the command line. Everything that `take` refers to must outlive the parsing.
using TakeSetting = std::function<void(const std::string& name, const std::string& text)>;
void add_setting_flags(CLI::App& app, const std::vector<planner::Field>& fields,
                       planner::Command command, const TakeSetting& take);

// Returns the built-in entries plus those of `hardware_file` if it is not empty. Hugging Face
// folders are found as models.
planner::Catalog make_catalog(const std::string& hardware_file = "");

// Adds the flags of a planner question.
void add_plan_flags(CLI::App& app, planner::RunConfig& settings);

// Copies one setting of a run to the settings of a plan. Ignores settings that a plan does not
// have, and values that leave the choice to the run.
void take_run_setting(const std::string& name, const std::string& text,
                      planner::RunConfig& settings);

// Reads a config file of a run into `settings`, as take_run_setting() does. Throws UsageError for
// unknown keys.
void read_plan_config(const std::string& path, planner::RunConfig& settings);

}  // namespace tessera::cli
