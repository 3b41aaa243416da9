#include "tessera/cli/plan_flags.h"

#include <algorithm>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/planner/toml_text.h"

namespace tessera::cli {
namespace {

// Returns the row for a key of a run's file. A row that only plans have is found by its present
// name alone: "order" in such a file is the order of samples, not the older name of --axis-order.
const planner::Field* find_setting(const std::string& name, planner::Command command) {
  for (const planner::Field& field : planner::fields(command)) {
    if (field.name == name || (field.formerly == name && field.is(planner::Command::train))) {
      return &field;
    }
  }
  return nullptr;
}

}  // namespace

void add_setting_flags(CLI::App& app, const std::vector<planner::Field>& fields,
                       planner::Command command, const TakeSetting& take) {
  for (const planner::Field& field : fields) {
    const std::string flag =
        str("--", field.name, field.formerly.empty() ? "" : ",--" + field.formerly);
    CLI::Option* const option =
        field.is_flag()
            ? app.add_flag_function(
                  str(flag, ",!--no-", field.name),
                  [take, name = field.name](std::int64_t count) {
                    take(name, count > 0 ? "true" : "false");
                  },
                  field.help)
            : app.add_option_function<std::string>(
                     flag, [take, name = field.name](const std::string& text) { take(name, text); },
                     field.help)
                  ->type_name(field.type_name());
    option->group(field.group)
        ->take_last()  // so that scripts can append overriding flags
        ->default_str(field.shown_default(command));
  }
}

void add_plan_flags(CLI::App& app, planner::RunConfig& settings) {
  add_setting_flags(
      app, planner::fields(planner::Command::plan), planner::Command::plan,
      [&settings](const std::string& name, const std::string& text) { settings.set(name, text); });
}

namespace {

// Applies the choices that a run makes for open settings, so that the plan describes that run. A
// file of `tessera train --print-config` contains every setting.
void choose_as_run(const std::string& name, const std::string& text, planner::RunConfig& settings) {
  if (name == "seq" && text == "0") settings.set("seq", std::to_string(planner::kRunSeq));
  if (name == "device" && text == "cpu") settings.set("hardware", "cpu");
}

}  // namespace

void take_run_setting(const std::string& name, const std::string& text,
                      planner::RunConfig& settings) {
  const planner::Field* const plan = find_setting(name, planner::Command::plan);
  if (plan == nullptr || text.empty()) return;
  // 0 lets a run choose, unless it is a value.
  const bool is_value = plan->automatic || plan->bounded_in_plans;
  if (text == "0" && !is_value) return;
  settings.set(plan->name, text);
}

void read_plan_config(const std::string& path, planner::RunConfig& settings) {
  const std::string where = "--config: " + path;
  const std::string text =
      read_small_file(path, planner::kMaxToml, "a TOML file of settings", "--config");
  settings.set("software", "tessera");  // the file is a config of tessera train
  std::string ranks;
  bool axis_given = false;
  for (const planner::FileSetting& each : planner::parse_settings(text, where)) {
    std::string name = each.key;
    std::replace(name.begin(), name.end(), '_', '-');
    choose_as_run(name, each.text, settings);
    if (name == "ranks") ranks = each.text;
    for (const Axis axis : kFactorAxes) {
      const char* const open = axis == Axis::dp_shard ? "0" : "1";  // the value of an omitted flag
      axis_given |= "--" + name == axis_flag(axis) && each.text != open;
    }
    try {
      if (!find_setting(name, planner::Command::plan)) {
        planner::find_field(planner::Command::train, each.key);  // throws for an unknown name
      }
      take_run_setting(name, each.text, settings);
    } catch (const UsageError& error) {
      throw error.within(str(where, ", line ", each.line));
    }
  }
  if (ranks == "0") ranks = axis_given ? "" : std::to_string(planner::kRunRanks);
  if (!ranks.empty()) settings.set("gpus", ranks);
}

planner::Catalog make_catalog(const std::string& hardware_file) {
  planner::Catalog catalog;
  if (!hardware_file.empty()) catalog.read(hardware_file);
  catalog.find_models_by([](const std::string& name) { return huggingface::find_model(name); });
  return catalog;
}

}  // namespace tessera::cli
