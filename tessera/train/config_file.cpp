#include <toml++/toml.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/train/config.h"

namespace tessera::train {
namespace {

// What a flag would say in place of the value.
std::string as_text(const toml::node& node, const std::string& where) {
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
  throw UsageError(where + ": wanted a number, a text, true or false");
}

}  // namespace

void read_config(TrainConfig& config, const std::string& path, std::vector<std::string>* named) {
  std::ifstream file(path);
  if (!file) {
    throw UsageError(str("--config: cannot read ", quote(path), ": ", std::strerror(errno)));
  }
  toml::table table;
  try {
    table = toml::parse(file, path);
  } catch (const toml::parse_error& error) {
    throw UsageError(
        str("--config: ", path, ", line ", error.source().begin.line, ": ", error.description()));
  }
  // Keys stand in tables for the reader's sake; what a key means does not depend on its table.
  for (const auto& [group, content] : table) {
    const auto take = [&](std::string_view key, const toml::node& node) {
      const std::string where =
          str("--config: ", path, ", line ", node.source().begin.line, ", ", key);
      try {
        const Field& known = field(key);
        set(config, known, as_text(node, where));
        if (named != nullptr) named->push_back(known.name);
      } catch (const UsageError& error) {
        throw UsageError(
            str("--config: ", path, ", line ", node.source().begin.line, ": ", error.what()));
      }
    };
    if (const auto* inner = content.as_table()) {
      for (const auto& [key, node] : *inner) take(key.str(), node);
    } else {
      take(group.str(), content);
    }
  }
}

}  // namespace tessera::train
