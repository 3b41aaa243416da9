#include "tessera/cli/plan_flags.h"

#include <string>

#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

void add_plan_flag(CLI::App& app, const planner::Field& field, planner::Settings& settings) {
  const std::string flag = "--" + field.name;
  if (field.flag) {
    app.add_flag_function(
           str(flag, ",!--no-", field.name),
           [&settings, name = field.name](std::int64_t count) {
             settings.set(name, count > 0 ? "true" : "false");
           },
           field.help)
        ->group(field.group)
        ->take_last()
        ->default_str(field.shown_default);
    return;
  }
  const std::string type =
      field.choices.empty() ? field.type : "{" + join(field.choices, ",") + "}";
  app.add_option_function<std::string>(
         flag,
         [&settings, name = field.name](const std::string& text) { settings.set(name, text); },
         field.help)
      ->group(field.group)
      ->take_last()  // so that a script can add to another's flags
      ->type_name(type)
      ->default_str(field.shown_default);
}

}  // namespace

void add_plan_flags(CLI::App& app, planner::Settings& settings) {
  for (const planner::Field& field : planner::fields()) add_plan_flag(app, field, settings);
}

}  // namespace tessera::cli
