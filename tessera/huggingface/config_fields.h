#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::huggingface {

// Meaning of fields that no family reads: [Note: fields].
struct FieldTable {
  using Names = std::set<std::string, std::less<>>;
  Names harmless;     // do not affect the computation
  Names computes;     // affect it unless null, false, zero or empty
  Names multipliers;  // affect it unless null or 1
};
// Fields of config.json.
const FieldTable& config_fields();
// Fields of its "rope_scaling" and "rope_parameters".
const FieldTable& rope_fields();

// Fields of a JSON object. finish() checks those that no call has read. All members throw DataError
// that names the field.
class Fields {
 public:
  using Json = nlohmann::json;

  // `where` names the object in errors; the object is not copied.
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // Returns the field, or null if it is absent or null.
  const Json* find(const std::string& name);
  // Returns true if the field is neither absent nor null.
  bool has(const std::string& name) { return find(name) != nullptr; }

  // Returns an integer of at least `least`, or nullopt if absent.
  std::optional<std::int64_t> whole(const std::string& name, std::int64_t least = 1);
  // Returns a required size; throws if absent.
  std::int64_t needed(const std::string& name);
  // Returns a number in [least, most].
  double number(const std::string& name, double otherwise, double least, double most);
  // Returns a required number in [least, most].
  double needed_number(const std::string& name, double least, double most);
  // Returns a boolean.
  bool flag(const std::string& name, bool otherwise);
  // Returns a string.
  std::string word(const std::string& name, const std::string& otherwise);
  // Throws unless the field is absent or `wanted`, the only value that Tessera supports.
  void only(const std::string& name, bool wanted);
  // Throws with the value and what it must be.
  [[noreturn]] void refuse(const std::string& name, const Json& got,
                           const std::string& wanted) const;
  // Throws if an unread field affects the computation. Returns the quoted names of unknown fields:
  // [Note: fields].
  std::vector<std::string> finish(const FieldTable& table) const;

  // Name of the object in errors.
  const std::string& where() const { return where_; }
  const Json& object() const { return object_; }

 private:
  const Json& object_;
  const std::string where_;
  std::set<std::string> read_;
};

}  // namespace tessera::huggingface
