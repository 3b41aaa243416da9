#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tessera::planner {

// Bytes and counts: whole, unless they are more than 64 bits hold.
struct Whole {
  double value = 0;
};

// [Note: JSON without a tree] One line of JSON, put down from front to back. The server's answers
// are made of a hundred values each, and a tree of them takes longer to build and to take down than
// to print. The bytes are those that nlohmann::json prints, which tests compare.
class JsonText {
 public:
  JsonText() { text_.reserve(kUsual); }

  // Brackets: of the whole, of an element of a list, of a member.
  JsonText& object() { return begin('{'); }
  JsonText& list() { return begin('['); }
  JsonText& object(std::string_view key) { return name(key).begin('{'); }
  JsonText& list(std::string_view key) { return name(key).begin('['); }
  JsonText& end_object() { return end('}'); }
  JsonText& end_list() { return end(']'); }

  // A member; keys are our own words, which need no escapes.
  template <typename Value>
  JsonText& member(std::string_view key, const Value& value) {
    return name(key).element(value);
  }
  // With whatever text for a key.
  template <typename Value>
  JsonText& member_called(std::string_view key, const Value& value) {
    element(key);
    text_ += ':';
    return element(value);
  }
  // Null where it is not known.
  template <typename Value>
  JsonText& member_if(bool known, std::string_view key, const Value& value) {
    return known ? member(key, value) : member(key, nullptr);
  }
  // An element of a list: nullptr, bool, whole and other numbers, text.
  template <typename Value>
  JsonText& element(const Value& value) {
    separate();
    if constexpr (std::is_same_v<Value, std::nullptr_t>) {
      text_ += "null";
    } else if constexpr (std::is_same_v<Value, bool>) {
      text_ += value ? "true" : "false";
    } else if constexpr (std::is_same_v<Value, Whole>) {
      put_whole(value.value);
    } else if constexpr (std::is_integral_v<Value>) {
      put_integer(static_cast<std::int64_t>(value));
    } else if constexpr (std::is_floating_point_v<Value>) {
      put_real(value);
    } else {
      put_string(value);
    }
    return *this;
  }

  std::string take() { return std::move(text_); }

 private:
  void separate() {
    if (text_.empty()) return;
    const char last = text_.back();  // what was put down ends with none of these
    if (last != '{' && last != '[' && last != ':') text_ += ',';
  }
  JsonText& begin(char bracket) {
    separate();
    text_ += bracket;
    return *this;
  }
  JsonText& end(char bracket) {
    text_ += bracket;
    return *this;
  }
  JsonText& name(std::string_view key) {
    separate();
    text_ += '"';
    text_ += key;
    text_ += "\":";
    return *this;
  }
  void put_integer(std::int64_t value);
  void put_whole(double value);
  void put_real(double value);  // null if it is none
  void put_string(std::string_view text);

  static constexpr std::size_t kUsual = 4096;  // bytes of a plan, about
  std::string text_;
};

}  // namespace tessera::planner
