#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::data {

// Fields of a JSON object in a tokenizer file. Fields that were not read are rejected by name, so
// that no part of a file is silently ignored.
class TokenizerFields {
 public:
  using Json = nlohmann::json;

  TokenizerFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) bad("", "an object");
  }

  const std::string& where() const { return where_; }
  std::string where(std::string_view key) const { return str(where_, ", ", key); }

  // Returns null if the field is null or absent.
  const Json* get(const std::string& key) {
    asked_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& need(const std::string& key, const char* wanted) {
    const Json* json = get(key);
    if (json == nullptr) bad(key, wanted);
    return *json;
  }
  std::string text(const std::string& key) {
    const Json& json = need(key, "a string");
    if (!json.is_string()) bad(key, "a string");
    return json.get<std::string>();
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    return get(key) == nullptr ? otherwise : text(key);
  }
  bool flag(const std::string& key, bool otherwise) {
    const Json* json = get(key);
    if (json == nullptr) return otherwise;
    if (!json->is_boolean()) bad(key, "true or false");
    return json->get<bool>();
  }
  std::int64_t count(const std::string& key) { return count_of(need(key, "a number"), key); }
  const Json& list(const std::string& key) {
    const Json& json = need(key, "a list");
    if (!json.is_array()) bad(key, "a list");
    return json;
  }
  // Returns a token id.
  std::int64_t count_of(const Json& json, const std::string& key) const {
    if (!json.is_number_unsigned() || json.get<std::uint64_t>() >= (std::uint64_t{1} << 31)) {
      bad(key, "a whole number from 0 to 2147483647");
    }
    return json.get<std::int64_t>();
  }

  // Accepts fields that have no effect here.
  void ignore(std::initializer_list<const char*> keys) { asked_.insert(keys.begin(), keys.end()); }
  void done() const {
    for (const auto& [key, value] : json_.items()) {
      if (asked_.count(key) == 0) {
        throw DataError(
            str(where_, " has ", quote(key), ": ", shown(value), ", which is not supported"));
      }
    }
  }
  // Throws for a known but unsupported value.
  [[noreturn]] void refuse(const std::string& key, std::string_view why) {
    throw DataError(
        str(where_, " has ", quote(key), ": ", shown(need(key, "something")), ", ", why));
  }
  [[noreturn]] void bad(const std::string& key, std::string_view wanted) const {
    const auto found = json_.is_object() && !key.empty() ? json_.find(key) : json_.end();
    throw DataError(str(where_, key.empty() ? "" : str(", ", quote(key)), ": got ",
                        key.empty()            ? shown(json_)
                        : found == json_.end() ? "nothing"
                                               : shown(*found),
                        ", must be ", wanted));
  }

  static std::string shown(const Json& value) {
    if (value.is_object()) return "an object";
    if (value.is_array()) return "a list";
    std::string text = value.dump();
    if (text.size() > 60) text = text.substr(0, 60) + "…";
    return text;
  }

 private:
  const Json& json_;
  std::string where_;
  std::set<std::string> asked_;
};

}  // namespace tessera::data
