#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/core/enum_names.h"

namespace tessera {

// One argument of str(). Named enums are written by name, and types other than numbers and text
// with their operator<<.
class TextPart {
 public:
  template <typename T>
  explicit TextPart(const T& value) {
    using Plain = std::decay_t<T>;
    if constexpr (std::is_same_v<Plain, std::string> || std::is_same_v<Plain, std::string_view>) {
      set(value);
    } else if constexpr (std::is_same_v<Plain, const char*> || std::is_same_v<Plain, char*>) {
      const char* const text = value;
      set(text == nullptr ? std::string_view() : std::string_view(text));
    } else if constexpr (std::is_same_v<Plain, bool>) {
      set(value ? "true" : "false");
    } else if constexpr (std::is_integral_v<Plain> &&
                         sizeof(Plain) == 1) {  // written as characters
      kind_ = Kind::kCharacter;
      character_ = static_cast<char>(value);
    } else if constexpr (std::is_integral_v<Plain> && std::is_signed_v<Plain>) {
      kind_ = Kind::kSigned;
      signed_ = value;
    } else if constexpr (std::is_integral_v<Plain>) {
      kind_ = Kind::kUnsigned;
      unsigned_ = value;
    } else if constexpr (NamedEnum<Plain>) {
      set(name(value));
    } else if constexpr (std::is_same_v<Plain, float> || std::is_same_v<Plain, double>) {
      kind_ = Kind::kDouble;
      double_ = value;
    } else {
      static_assert(!std::is_function_v<T>,
                    "str() does not support manipulators; see fixed() and hex()");
      kind_ = Kind::kOther;
      other_ = {&value,
                [](std::ostream& out, const void* it) { out << *static_cast<const T*>(it); }};
    }
  }

 private:
  friend std::string concatenate(const TextPart* parts, std::size_t count);
  enum class Kind : std::uint8_t { kText, kCharacter, kSigned, kUnsigned, kDouble, kOther };
  struct Text {
    const char* data;
    std::size_t size;
  };
  struct Other {
    const void* value;
    void (*write)(std::ostream&, const void*);
  };

  void set(std::string_view text) {
    kind_ = Kind::kText;
    text_ = {text.data(), text.size()};
  }

  Kind kind_;
  union {
    Text text_;
    char character_;
    std::int64_t signed_;
    std::uint64_t unsigned_;
    double double_;
    Other other_;
  };
};
std::string concatenate(const TextPart* parts, std::size_t count);

// Concatenates its arguments as `<<` writes them: str("rank ", 3, " of ", 4). Always uses the "C"
// locale, so that messages and files do not depend on the user's settings.
template <typename... Args>
std::string str(const Args&... args) {
  if constexpr (sizeof...(args) == 0) {
    return {};
  } else {
    const TextPart parts[] = {TextPart(args)...};
    return concatenate(parts, sizeof...(args));
  }
}

// Formats with `decimals` digits after the point: fixed(2.5, 2) is "2.50".
std::string fixed(double value, int decimals);
// Formats in hexadecimal with at least `digits` digits: hex(10, 4) is "000a".
std::string hex(std::uint64_t value, int digits = 1);

// Concatenates parts with a separator: join({"a", "b"}, ", ") is "a, b".
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// Keeps the first `most` parts and replaces the others by "and 3 more".
void cut_list(std::vector<std::string>& parts, std::size_t most);

// Returns a count with its noun: "1 bucket", "2 buckets".
std::string plural(std::int64_t count, std::string_view noun);

// Returns the text in double quotes for a message. Escapes control characters, quotes and non-ASCII
// bytes, and cuts long texts in the middle, so that any user input is safe to print.
std::string quote(std::string_view text);

// Returns text from a file or a peer for a message or a table: control characters and bytes that
// are not UTF-8 are escaped, and more than `longest` bytes are cut in the middle. Such text could
// otherwise move a terminal's cursor or fill the screen.
std::string visible(std::string_view text, std::size_t longest = 160);
// Same as visible(), for a whole message: keeps newlines and tabs.
std::string visible_lines(std::string_view text, std::size_t longest = 32'000);

// Returns the number of insertions, deletions, substitutions and transpositions from `a` to `b`.
int edit_distance(std::string_view a, std::string_view b);

// Returns the candidate closest to `word`, or "" if none is close. Ignores case. The earlier
// candidate wins a tie.
std::string suggest(std::string_view word, const std::vector<std::string>& candidates);

// Returns "; did you mean X?" or "", to append to an error message.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera
