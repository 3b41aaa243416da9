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
  Names harmless;     // do not change the computation
  Names computes;     // change it unless null, false, zero or empty
  Names multipliers;  // change it unless null or 1
};
// Fields of config.json.
const FieldTable& config_fields();
// Fields of its "rope_scaling" and "rope_parameters".
const FieldTable& rope_fields();

// The fields of an object, each read once; finish() looks at those that no call read. All throw
// DataError that names the field.
class Fields {
 public:
  using Json = nlohmann::json;

  // `where` names the object in errors; the object is not copied.
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // Null counts as absent.
  const Json* find(const std::string& name);
  // Neither absent nor null.
  bool has(const std::string& name) { return find(name) != nullptr; }

  // A whole number, where there is one.
  std::optional<std::int64_t> whole(const std::string& name, std::int64_t least = 1);
  // The same of a size without which there is no model.
  std::int64_t needed(const std::string& name);
  // Whole or not.
  double number(const std::string& name, double otherwise, double least, double most);
  // The same where there is no default.
  double needed_number(const std::string& name, double least, double most);
  // True or false.
  bool flag(const std::string& name, bool otherwise);
  // A text.
  std::string word(const std::string& name, const std::string& otherwise);
  // A field that Tessera has in one way only.
  void only(const std::string& name, bool wanted);
  // Says what was got and what was wanted.
  [[noreturn]] void refuse(const std::string& name, const Json& got,
                           const std::string& wanted) const;
  // Refuses fields that were not read and change the computation, and returns the quoted names of
  // those that are not known: [Note: fields].
  std::vector<std::string> finish(const FieldTable& table) const;

  // What names the object in errors.
  const std::string& where() const { return where_; }
  const Json& object() const { return object_; }

 private:
  const Json& object_;
  const std::string where_;
  std::set<std::string> read_;
};

}  // namespace tessera::huggingface
