#include "tessera/data/utf8.h"

#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {
namespace {

// What begins at `at`: a character of `size` bytes, or so many that could have begun one.
struct Utf8Piece {
  bool whole;
  std::size_t size;
};

Utf8Piece utf8_piece(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(at);
  if (first < 0x80) return {true, 1};
  if (first < 0xc2 || first > 0xf4) return {false, 1};
  const std::size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte rules out long ways to write short numbers, surrogates and what is too large.
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(at + 1) < low || byte(at + 1) > high) return {false, 1};
  for (std::size_t i = 2; i < size; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {false, i};
  }
  return {true, size};
}

}  // namespace

std::size_t utf8_valid_until(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::uint64_t word = 0;
    if (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080U) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Piece piece = utf8_piece(text, at);
    if (!piece.whole) return at;
    at += piece.size;
  }
  return text.size();
}

CleanText clean_utf8(std::string_view text, BadUtf8 policy, std::string& storage) {
  std::size_t good = utf8_valid_until(text);
  if (good == text.size()) return {text, 0};
  if (policy == BadUtf8::refuse) {
    throw DataError(str("the text is no UTF-8: byte ",
                        hex(static_cast<unsigned char>(text[good]), 2), " at offset ", good,
                        " begins no character. Convert the file to UTF-8, or have such bytes "
                        "replaced"));
  }
  CleanText clean;
  storage.clear();
  std::size_t at = 0;
  while (true) {
    storage.append(text, at, good - at);
    if (good == text.size()) break;
    storage += "\xef\xbf\xbd";
    ++clean.replaced;
    at = good + utf8_piece(text, good).size;
    good = utf8_valid_until(text, at);
  }
  clean.text = storage;
  return clean;
}

}  // namespace tessera::data
