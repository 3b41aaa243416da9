#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tessera/planner/hardware.h"
#include "tessera/planner/settings.h"

namespace tessera::cli {

// A flag for each row of [Note: settings], in its group; what is given goes to `take`, in the order
// of the command line. All that `take` refers to must outlive the parsing.
using TakeSetting = std::function<void(const std::string& name, const std::string& text)>;
void add_setting_flags(CLI::App& app, const std::vector<planner::Field>& fields,
                       planner::Command command, const TakeSetting& take);

// The built-in entries, those of a --hardware-file if it names one, and folders of Hugging Face's
// among the models.
planner::Catalogue make_catalogue(const std::string& hardware_file = "");

// Those of a question.
void add_plan_flags(CLI::App& app, planner::Settings& settings);

// One setting of a run, in a plan's words. What leaves the choice to the run says nothing, nor does
// what no plan asks about.
void take_run_setting(const std::string& name, const std::string& text,
                      planner::Settings& settings);

// Puts what a file of --config says into `settings`: of a run's settings those that a plan asks
// about, if they say more than "choose". Throws UsageError for keys that are no setting.
void read_plan_config(const std::string& path, planner::Settings& settings);

}  // namespace tessera::cli
