#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera::data {

// What is wrong with a line, and at which byte of it. Whoever knows the file and the line makes a
// DataError of it.
class JsonProblem : public std::runtime_error {
 public:
  JsonProblem(const std::string& what, std::size_t at) : std::runtime_error(what), at_(at) {}
  std::size_t at() const { return at_; }

 private:
  std::size_t at_;
};

// Reads JSON (RFC 8259, strictly) from front to back, and keeps only what it is asked for: several
// times as quick as a parser that makes a tree of it. The text is valid UTF-8.
class JsonReader {
 public:
  static constexpr int kMostDepth = 100;

  // `refuse_surrogates`: half of a pair (\ud800 alone) is an error. Otherwise it becomes U+FFFD,
  // and is counted.
  explicit JsonReader(std::string_view text, bool refuse_surrogates = true)
      : text_(text), refuse_surrogates_(refuse_surrogates) {}

  char peek();  // the character that comes next, behind white space; 0 at the end
  std::size_t at() const { return at_; }
  void expect(char c);  // …which has to be this one
  bool take(char c);    // …and is passed if it is this one
  // A string. What it has is valid until the next call, or as long as the text.
  std::string_view string(std::string& storage);
  void skip_value(int depth = 0);
  void finish();  // nothing but white space comes
  std::int64_t replaced() const { return replaced_; }

  // Calls member(key) for each member of an object: it reads the value.
  template <typename Member>
  void object(const Member& member) {
    expect('{');
    if (take('}')) return;
    std::string storage;
    do {
      if (peek() != '"') fail("wanted a name in double quotes");
      const std::string_view key = string(storage);
      expect(':');
      member(key);
    } while (take(','));
    expect('}');
  }
  // Likewise for each element of a list.
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
