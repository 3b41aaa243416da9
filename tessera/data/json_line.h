#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera::data {

// Syntax error in a line and its byte position. The caller, which has the file and line number,
// converts it to a DataError.
class JsonProblem : public std::runtime_error {
 public:
  JsonProblem(const std::string& what, std::size_t at) : std::runtime_error(what), at_(at) {}
  std::size_t at() const { return at_; }

 private:
  std::size_t at_;
};

// Streaming reader of JSON (strict RFC 8259). Extracts only the requested values, several times as
// fast as a parser that builds a tree. The text must be valid UTF-8.
class JsonReader {
 public:
  static constexpr int kMostDepth = 100;

  // `refuse_surrogates`: an unpaired surrogate (\ud800 alone) is an error. Otherwise it becomes
  // U+FFFD and is counted.
  explicit JsonReader(std::string_view text, bool refuse_surrogates = true)
      : text_(text), refuse_surrogates_(refuse_surrogates) {}

  char peek();  // next character after white space; 0 at the end
  std::size_t at() const { return at_; }
  void expect(char c);  // consumes `c`, or fails
  bool take(char c);    // consumes `c` if it is next
  // Reads a string. The result is valid as long as the text, or until `storage` changes.
  std::string_view string(std::string& storage);
  void skip_value(int depth = 0);
  void finish();  // fails unless only white space is left
  std::int64_t replaced() const { return replaced_; }

  // Calls member(key) for each member of an object; it must read the value.
  template <typename Member>
  void object(const Member& member) {
    expect('{');
    if (take('}')) return;
    std::string storage;
    do {
      if (peek() != '"') fail("a member must start with a name in double quotes");
      const std::string_view key = string(storage);
      expect(':');
      member(key);
    } while (take(','));
    expect('}');
  }
  // Calls element() for each element of a list; it must read the value.
  template <typename Element>
  void array(const Element& element) {
    expect('[');
    if (take(']')) return;
    do {
      element();
    } while (take(','));
    expect(']');
  }
  [[noreturn]] void fail(const std::string& what) const { throw JsonProblem(what, at_); }

 private:
  void number();
  void word(std::string_view wanted);
  std::uint32_t four_digits();
  void escape(std::string& out);

  std::string_view text_;
  std::size_t at_ = 0;
  bool refuse_surrogates_;
  std::int64_t replaced_ = 0;
};

}  // namespace tessera::data
