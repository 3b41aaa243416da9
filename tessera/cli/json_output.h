#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

// Returns JSON text for --json, with a final newline. Bytes of paths and user text that are not
// valid UTF-8 become U+FFFD. An `indent` of -1 prints one line.
inline std::string json_text(const nlohmann::ordered_json& json, int indent = 2) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// Returns a value as JSON with escapes, but a string without its quotes.
inline std::string json_word(const nlohmann::ordered_json& value) {
  const std::string text =
      value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return value.is_string() ? text.substr(1, text.size() - 2) : text;
}

// Returns a readable summary of an object: "heads 4, layers 2, tied". Omits values that are null,
// false, zero or empty, so it does not replace the JSON.
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
