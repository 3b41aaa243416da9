// toml++ 3.3 asserts what its parser then reports as an error, a character later.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>

#include <sstream>

#include "tessera/cli/settings_file.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/toml_text.h"

namespace tessera::cli {
namespace {

std::string setting_text(const toml::node& node, std::string_view key, const std::string& where) {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_integer()) return str(value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  if (const auto* value = node.as_floating_point()) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out.precision(17);
    out << value->get();
    return out.str();
  }
  throw UsageError(str(where, ", line ", node.source().begin.line, ": ", key,
                       ": wanted a number, a text, true or false"));
}

}  // namespace

std::vector<FileSetting> parse_settings(std::string_view text, const std::string& where) {
  planner::check_toml_text(text, where);
  toml::table table;
  try {
    table = toml::parse(text, where);
  } catch (const toml::parse_error& error) {
    throw UsageError(str(where, ", line ", error.source().begin.line, ": ", error.description()));
  }
  std::vector<FileSetting> all;
  const auto take = [&](std::string_view key, const toml::node& node) {
    all.push_back({std::string(key), setting_text(node, key, where), node.source().begin.line});
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

}  // namespace tessera::cli
