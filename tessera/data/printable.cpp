#include "tessera/data/printable.h"

#include <algorithm>

namespace tessera::data {

std::size_t valid_length(std::span<const unsigned char> text) {
  const unsigned char first = text[0];
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xc2   ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  const std::size_t there = std::min(length, text.size());
  for (std::size_t i = 1; i < there; ++i) {
    // The second byte has a smaller range: no overlong forms, no surrogates, nothing above
    // U+10FFFF.
    const unsigned char least = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (text[i] < least || text[i] > most) return 0;
  }
  return there;
}

std::string printable(std::string_view text) {
  const std::span<const unsigned char> bytes(reinterpret_cast<const unsigned char*>(text.data()),
                                             text.size());
  const auto whole = [](unsigned char first) {
    return first < 0xe0 ? std::size_t{2} : first < 0xf0 ? std::size_t{3} : std::size_t{4};
  };
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = valid_length(bytes.subspan(at));
    if (length < 2) {
      const unsigned char byte = bytes[at++];
      if (byte == '\n') {
        out += "⏎";
      } else {
        out += byte < 0x20 || byte >= 0x7f ? '.' : static_cast<char>(byte);
      }
      continue;
    }
    // U+0080 to U+009F are control characters too; a truncated character is invalid.
    const bool control = bytes[at] == 0xc2 && bytes[at + 1] < 0xa0;
    if (control || length < whole(bytes[at])) {
      out += std::string(length, '.');
    } else {
      out += text.substr(at, length);
    }
    at += length;
  }
  return out;
}

}  // namespace tessera::data
