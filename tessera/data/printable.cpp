#include "tessera/data/printable.h"

#include "tessera/core/utf8.h"

namespace tessera::data {

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto [kind, size] = utf8_sequence(text, at);
    const auto first = static_cast<unsigned char>(text[at]);
    // U+0080 to U+009F are control characters too.
    const bool control = size == 1
                             ? first < 0x20 || first == 0x7f
                             : first == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0;
    if (first == '\n') {
      out += "⏎";
    } else if (kind != Utf8Sequence::Kind::valid || control) {
      out.append(size, '.');
    } else {
      out += text.substr(at, size);
    }
    at += size;
  }
  return out;
}

}  // namespace tessera::data
