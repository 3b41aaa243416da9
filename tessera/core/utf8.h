#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// Returns the length of the character that starts with this byte. Valid UTF-8 only.
inline std::size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Returns the character at `at` and advances it. Valid UTF-8 only.
inline char32_t utf8_next(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  const char32_t first = byte(at);
  if (first < 0x80) return ++at, first;
  if (first < 0xe0) {
    at += 2;
    return (first & 0x1f) << 6 | (byte(at - 1) & 0x3f);
  }
  if (first < 0xf0) {
    at += 3;
    return (first & 0x0f) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
  }
  at += 4;
  return (first & 0x07) << 18 | (byte(at - 3) & 0x3f) << 12 | (byte(at - 2) & 0x3f) << 6 |
         (byte(at - 1) & 0x3f);
}

// Returns the start of the character that ends at `at`, which must not be 0. Valid UTF-8 only.
inline std::size_t utf8_before(std::string_view text, std::size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

inline void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

// Bytes that UTF-8 decoding treats as one unit.
struct Utf8Sequence {
  enum class Kind : std::uint8_t {
    valid,      // a character
    truncated,  // the text ends inside of a character
    invalid     // the longest prefix of a character, or one byte that starts none
  };
  Kind kind;
  std::size_t size;  // bytes, at least 1
};
// Returns the sequence at `at`, which must be less than the size of the text. Overlong forms,
// surrogates and values above U+10FFFF are invalid.
Utf8Sequence utf8_sequence(std::string_view text, std::size_t at);

// Returns the end of the valid characters from `at` on: the size of the text, or the first byte of
// a sequence that is not valid.
std::size_t utf8_valid_until(std::string_view text, std::size_t at = 0);

// Returns one line of UTF-8 without terminal control characters and bytes that are not UTF-8; each
// such byte becomes a dot.
std::string printable(std::string_view text);

}  // namespace tessera
