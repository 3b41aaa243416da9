#pragma once

// The only header that includes toml++, for sources listed with tessera_toml_source() in
// cmake/TesseraTargets.cmake. To read settings, include toml_text.h instead.

// toml++ 3.3 asserts conditions that its parser reports as an error one character later. Disabling
// the assertions, as in a release build, gives a malformed file its message.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>

#include <locale>
#include <optional>
#include <sstream>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/toml_text.h"

namespace tessera::planner {

[[noreturn]] inline void fail_in_toml(const toml::source_region& at, const std::string& where,
                                      std::string_view what) {
  throw UsageError(str(where, ", line ", at.begin.line, ", column ", at.begin.column, ": ", what));
}

// Parses TOML. Throws UsageError, with line and column, for invalid TOML and for texts that
// check_toml_text() rejects.
inline toml::table parse_toml(std::string_view text, const std::string& where) {
  check_toml_text(text, where);
  try {
    return toml::parse(text, where);
  } catch (const toml::parse_error& error) {
    fail_in_toml(error.source(), where, error.description());
  }
}

// Returns the value as a flag's argument; nullopt for a table, a list or a date.
inline std::optional<std::string> flag_text(const toml::node& node) {
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
  return std::nullopt;
}
inline constexpr const char* kWantedFlagText = "must be a number, a string, true or false";

}  // namespace tessera::planner
