#include "tessera/cli/plan_flags.h"

#include "tessera/core/text.h"
#include "tessera/huggingface/config.h"

namespace tessera::cli {

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
        ->take_last()  // so that a script can add to another's flags
        ->default_str(field.shown_default(command));
  }
}

void add_plan_flags(CLI::App& app, planner::Settings& settings) {
  add_setting_flags(
      app, planner::fields(planner::Command::plan), planner::Command::plan,
      [&settings](const std::string& name, const std::string& text) { settings.set(name, text); });
}

planner::Catalogue make_catalogue() {
  planner::Catalogue catalogue;
  catalogue.find_models_by([](const std::string& name) { return huggingface::find_model(name); });
  return catalogue;
}

}  // namespace tessera::cli
