#include "tessera/planner/settings_text.h"

#include <algorithm>
#include <variant>

#include "tessera/core/text.h"
#include "tessera/planner/toml_text.h"

namespace tessera::planner {
namespace {

// A float of TOML has a point or an exponent.
std::string toml_value(const RunSettings& settings, const Field& field) {
  std::string text = get(settings, field);
  const bool is_word = std::holds_alternative<std::string RunSettings::*>(field.member);
  if (is_word || (field.automatic && text == "auto")) return toml_string(text);
  if (std::holds_alternative<double RunSettings::*>(field.member) &&
      text.find_first_of(".eE") == std::string::npos) {
    text += ".0";
  }
  return text;
}

std::string table_name(std::string group) {
  std::transform(group.begin(), group.end(), group.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return group;
}

}  // namespace

std::string settings_toml(const RunSettings& settings, const std::vector<Field>& fields,
                          const LineNote& note) {
  std::string text, group;
  for (const Field& field : fields) {
    const std::optional<std::string> behind = note(field);
    if (!behind) continue;
    if (field.group != group) {
      group = field.group;
      text += str(text.empty() ? "" : "\n", "[", table_name(group), "]\n");
    }
    text += str(field.name, " = ", toml_value(settings, field), *behind, "\n");
  }
  return text;
}

}  // namespace tessera::planner
