#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tessera::data {

// Returns the bytes of the UTF-8 character at the start of a non-empty text; 0 if it is invalid. A
// character truncated by the end of the text counts as the rest of the text.
std::size_t valid_length(std::span<const unsigned char> text);

// Returns one line of UTF-8 without terminal control characters; each such byte becomes a dot.
std::string printable(std::string_view text);

}  // namespace tessera::data
