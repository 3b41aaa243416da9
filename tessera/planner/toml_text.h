#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/fields.h"

namespace tessera::planner {

// Largest TOML text in bytes. RunConfig and hardware entries are small.
inline constexpr std::int64_t kMaxToml = 1 << 20;

// Throws UsageError, with line and column, for texts that toml++ cannot parse safely: larger than
// kMaxToml, with non-ASCII characters outside strings and comments, or with keys of very many
// parts.
void check_toml_text(std::string_view text, const std::string& where);

// Returns `text` as a TOML basic string, with escapes.
std::string toml_string(std::string_view text);

// Text after a setting's line: "" or a comment; nullopt omits the setting.
using LineNote = std::function<std::optional<std::string>(const Field&)>;

// Returns a TOML file for --config, with a table for each group.
std::string settings_toml(const RunConfig& settings, const std::vector<Field>& fields,
                          const LineNote& note);

// Key of a settings file, with its value as a flag's argument.
struct FileSetting {
  std::string key;
  std::string text;
  std::int64_t line = 0;
};
// Parses a settings file. Tables, at most one level deep, are for readability only and do not
// affect the meaning of a key. Throws UsageError that begins with `where` and the line, also if
// toml++ is missing.
std::vector<FileSetting> parse_settings(std::string_view toml, const std::string& where);

}  // namespace tessera::planner
