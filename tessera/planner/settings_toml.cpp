#include "tessera/planner/settings_toml.h"

#include "tessera/planner/toml_reader.h"

namespace tessera::planner {

std::vector<FileSetting> parse_settings(std::string_view text, const std::string& where) {
  const toml::table table = parse_toml(text, where);
  std::vector<FileSetting> all;
  const auto take = [&](std::string_view key, const toml::node& node) {
    const std::int64_t line = node.source().begin.line;
    const std::optional<std::string> value = flag_text(node);
    if (!value) throw UsageError(str(where, ", line ", line, ": ", key, ": ", kWantedFlagText));
    all.push_back({std::string(key), *value, line});
  };
  for (const auto& [group, content] : table) {
    if (const auto* inner = content.as_table()) {
      for (const auto& [key, node] : *inner) take(key.str(), node);
    } else {
      take(group.str(), content);
    }
  }
  return all;
}

}  // namespace tessera::planner
