// toml++ 3.3 asserts what its parser then reports as an error, a character later.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>

#include <map>
#include <sstream>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/planner/toml_text.h"
#include "tessera/train/config.h"

namespace tessera::train {
namespace {

// What a flag would say in place of the value.
std::string as_text(const toml::node& node, std::string_view key) {
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
  throw UsageError(str(key, ": wanted a number, a text, true or false"));
}

}  // namespace

void read_config(TrainConfig& config, const std::string& path, std::vector<std::string>* named) {
  parse_config(config,
               read_small_file(path, planner::kMostToml,
                               "a TOML file, such as --print-config prints", "--config"),
               path, named);
}

void parse_config(TrainConfig& config, std::string_view text, const std::string& where,
                  std::vector<std::string>* named) {
  planner::check_toml_text(text, "--config: " + where);
  toml::table table;
  try {
    table = toml::parse(text, where);
  } catch (const toml::parse_error& error) {
    throw UsageError(
        str("--config: ", where, ", line ", error.source().begin.line, ": ", error.description()));
  }
  TrainConfig read = config;  // a file that fails changes nothing
  std::map<std::string, toml::source_index> lines;
  // Keys stand in tables for the reader's sake; what a key means does not depend on its table.
  const auto take = [&](std::string_view key, const toml::node& node) {
    const toml::source_index line = node.source().begin.line;
    try {
      const Field& known = field(key);
      if (const auto [first, fresh] = lines.emplace(known.name, line); !fresh) {
        throw UsageError(str(key, " is in line ", first->second, " too; wanted it once"));
      }
      set(read, known, as_text(node, key));
    } catch (const UsageError& error) {
      throw UsageError(str("--config: ", where, ", line ", line, ": ", error.what()));
    }
  };
  for (const auto& [group, content] : table) {
    if (const auto* inner = content.as_table()) {
      for (const auto& [key, node] : *inner) take(key.str(), node);
    } else {
      take(group.str(), content);
    }
  }
  config = std::move(read);
  if (named == nullptr) return;
  for (const auto& [name, line] : lines) named->push_back(name);
}

}  // namespace tessera::train
