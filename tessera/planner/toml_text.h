#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::planner {

// For whoever gives a text to toml++: settings and entries of hardware are small.
inline constexpr std::int64_t kMostToml = 1 << 20;

// Throws UsageError, with line and column, for what toml++ cannot be given safely: a text over
// kMostToml, characters beyond ASCII outside texts and comments, and keys of very many parts.
void check_toml_text(std::string_view text, const std::string& where);

// A basic string of TOML, whatever is in it.
std::string toml_string(std::string_view text);

}  // namespace tessera::planner
