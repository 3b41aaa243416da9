#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/planner/settings_text.h"
#include "tessera/planner/settings_toml.h"
#include "tessera/planner/toml_text.h"
#include "tessera/train/config.h"

namespace tessera::train {

std::string to_toml(const TrainConfig& config) {
  return planner::settings_toml(config, fields(), [](const Field&) { return ""; });
}

void read_config(TrainConfig& config, const std::string& path, std::vector<std::string>* named) {
  parse_config(config,
               read_small_file(path, planner::kMostToml,
                               "a TOML file, such as --print-config prints", "--config"),
               path, named);
}

void parse_config(TrainConfig& config, std::string_view text, const std::string& file,
                  std::vector<std::string>* named) {
  const std::string where = "--config: " + file;
  TrainConfig read = config;  // a file that fails changes nothing
  std::map<std::string, std::int64_t> lines;
  for (const planner::FileSetting& each : planner::parse_settings(text, where)) {
    try {
      const Field& known = field(each.key);
      if (const auto [first, fresh] = lines.emplace(known.name, each.line); !fresh) {
        throw UsageError(
            str(each.key, " is also in line ", first->second, "; must be given only once"));
      }
      set(read, known, each.text);
    } catch (const UsageError& error) {
      throw UsageError(str(where, ", line ", each.line, ": ", error.what()));
    }
  }
  config = std::move(read);
  if (named == nullptr) return;
  for (const auto& [name, line] : lines) named->push_back(name);
}

}  // namespace tessera::train
