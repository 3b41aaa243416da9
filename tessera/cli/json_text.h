#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

// What a command prints with --json, a line end behind it. Paths and texts of users may hold bytes
// that are no UTF-8, which JSON cannot have: they become U+FFFD. An `indent` of -1 is one line.
inline std::string json_text(const nlohmann::ordered_json& json, int indent = 2) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// A value as JSON writes it, escapes and all, but a string without its quotes.
inline std::string json_word(const nlohmann::ordered_json& value) {
  const std::string text =
      value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return value.is_string() ? text.substr(1, text.size() - 2) : text;
}

// An object in words, for people: "heads 4, layers 2, tied". What is null, false, zero or empty is
// left out, so it is no replacement for the JSON.
inline std::string json_words(const nlohmann::ordered_json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    std::string word = json_word(key);
    if (value.is_object()) {
      const std::string inside = json_words(value);
      if (inside.empty()) continue;
      word += " (" + inside + ")";
    } else if (value.is_null() || value.empty() || value == false || value == 0 || value == "") {
      continue;
    } else if (value != true) {
      word += " " + json_word(value);
    }
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

}  // namespace tessera::cli
