#include "tessera/core/strict_json.h"

#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

// Builds the value during parsing. Detects duplicate keys when it inserts them into the objects: a
// separate set of keys would take longer than the rest of the parser.
class StrictBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Json = nlohmann::json;

  StrictBuilder(int most_depth, const std::string& where)
      : most_depth_(static_cast<std::size_t>(most_depth)), where_(where) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& value) override { return put(std::move(value)); }
  bool start_object(std::size_t) override { return begin(Json::value_t::object); }
  bool start_array(std::size_t) override { return begin(Json::value_t::array); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    auto& object = open_.back()->get_ref<Json::object_t&>();
    const auto [place, inserted] = object.try_emplace(std::move(name));
    if (!inserted) throw DataError(str(where_, " has ", quote(place->first), " twice"));
    member_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    throw DataError(str(where_, " is not valid JSON: ", json_error_text(error.what())));
  }

 private:
  // Stores the next value: after its key, or at the end of the list.
  template <typename Value>
  Json& place(Value&& value) {
    if (open_.empty()) return root_ = Json(std::forward<Value>(value));
    if (open_.back()->is_object()) return *member_ = Json(std::forward<Value>(value));
    auto& list = open_.back()->get_ref<Json::array_t&>();
    return list.emplace_back(std::forward<Value>(value));
  }
  template <typename Value>
  bool put(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  bool begin(Json::value_t kind) {
    if (open_.size() >= most_depth_) throw DataError(where_ + " is nested too deeply");
    open_.push_back(&place(kind));
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  std::size_t most_depth_;
  const std::string& where_;
  Json root_;
  std::vector<Json*> open_;  // open objects and lists, outermost first; they do not move while open
  Json* member_ = nullptr;   // value of the last key of the innermost object
};

}  // namespace

nlohmann::json parse_strictly(std::string_view text, int most_depth, const std::string& where) {
  StrictBuilder builder(most_depth, where);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace tessera
