#pragma once

#include <string>
#include <string_view>

namespace tessera::data {

// Returns one line of UTF-8 without terminal control characters and bytes that are not UTF-8; each
// such byte becomes a dot.
std::string printable(std::string_view text);

}  // namespace tessera::data
