#include "tessera/checkpoint/strict_json.h"

#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/json_error.h"
#include "tessera/core/text.h"

namespace tessera::checkpoint {
namespace {

// Builds the value while it is parsed, and sees by the objects themselves what is there twice: a
// set of the keys beside them would take longer than all of the rest.
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
    auto& object = around_.back()->get_ref<Json::object_t&>();
    const auto [place, fresh] = object.try_emplace(std::move(name));
    if (!fresh) throw DataError(str(where_, " has ", quote(place->first), " twice"));
    member_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    throw DataError(str(where_, " is no JSON: ", json_error_text(error.what())));
  }

 private:
  // Where the next value goes: behind its key, or at the end of the list.
  template <typename Value>
  Json& place(Value&& value) {
    if (around_.empty()) return root_ = Json(std::forward<Value>(value));
    if (around_.back()->is_object()) return *member_ = Json(std::forward<Value>(value));
    auto& list = around_.back()->get_ref<Json::array_t&>();
    return list.emplace_back(std::forward<Value>(value));
  }
  template <typename Value>
  bool put(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  bool begin(Json::value_t kind) {
    if (around_.size() >= most_depth_) throw DataError(where_ + " is nested too deeply");
    around_.push_back(&place(kind));
    return true;
  }
  bool end() {
    around_.pop_back();
    return true;
  }

  std::size_t most_depth_;
  const std::string& where_;
  Json root_;
  std::vector<Json*> around_;  // objects and lists that are begun: they do not move meanwhile
  Json* member_ = nullptr;     // of the innermost object, whose key was read
};

}  // namespace

nlohmann::json parse_strictly(std::string_view text, int most_depth, const std::string& where) {
  StrictBuilder builder(most_depth, where);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace tessera::checkpoint
