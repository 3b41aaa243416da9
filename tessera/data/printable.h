#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tessera::data {

// Bytes of the character of UTF-8 that a text, which is not empty, begins with; 0 if there is none.
// A character that the end cuts off counts as the rest of the text.
std::size_t valid_length(std::span<const unsigned char> text);

// One line of UTF-8, with nothing in it that a terminal would act upon: a point for each such byte.
std::string printable(std::string_view text);

}  // namespace tessera::data
