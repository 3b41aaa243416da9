#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::planner {

// One key of a file of settings, and what a flag would say in place of its value.
struct FileSetting {
  std::string key;
  std::string text;
  std::int64_t line = 0;
};
// Keys stand in tables for the reader's sake, one deep; what a key means does not depend on its
// table. `where` begins the errors: UsageError with the line, also where toml++ is missing.
std::vector<FileSetting> parse_settings(std::string_view toml, const std::string& where);

}  // namespace tessera::planner
