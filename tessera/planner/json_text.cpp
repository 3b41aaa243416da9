#include "tessera/planner/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tessera::planner {

void JsonText::put_integer(std::int64_t value) {
  char digits[24];
  text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void JsonText::put_whole(double value) {
  if (std::abs(value) < 9e18) {
    put_integer(std::llround(value));
  } else {
    put_real(value);
  }
}

void JsonText::put_real(double value) {
  if (!std::isfinite(value)) {
    text_ += "null";
    return;
  }
  // The shortest digits that read back are not always one choice, and "1.0" and "1e+20" are a
  // matter of taste: nlohmann's.
  char digits[64];
  text_.append(digits, nlohmann::detail::to_chars(digits, digits + sizeof digits, value));
}

void JsonText::put_string(std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  if (plain) {
    text_ += '"';
    text_ += text;
    text_ += '"';
    return;
  }
  // Whatever a message quotes, the line is valid UTF-8.
  text_ += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tessera::planner
