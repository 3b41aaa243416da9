#pragma once

#include <string_view>

#include "tessera/data/input_parts.h"

namespace tessera::data {

// Document, or the fragment of one that lies in a part.
struct TextPiece {
  std::string_view text;
  bool begins, ends;  // in this part
};

// Calls piece(TextPiece) for each document in order. `begun`: the text starts inside a document;
// `open`: it ends inside one. For documents split by lines or blank lines the last '\n' is not
// included.
template <typename Piece>
void split_text(std::string_view text, SplitDocuments split, bool begun, bool open,
                const Piece& piece) {
  if (split == SplitDocuments::file) {
    if (begun || !text.empty()) piece(TextPiece{text, !begun, !open});
    return;
  }
  std::size_t at = 0, behind = 0;
  for (;;) {
    if (is_blank_line(text, at, behind)) {
      if (begun) piece(TextPiece{{}, false, true});
      begun = false;
      at = behind;
      continue;
    }
    if (behind == text.size()) {  // only white space up to the end
      if (begun) piece(TextPiece{open ? text.substr(at) : std::string_view(), false, !open});
      return;
    }
    // A line with text: the document ends after it, or before the next blank line.
    std::size_t end = text.find('\n', at);
    while (split == SplitDocuments::blank_line && end != std::string_view::npos &&
           end + 1 < text.size() && !is_blank_line(text, end + 1, behind)) {
      end = text.find('\n', end + 1);
    }
    const bool last = end == std::string_view::npos || (open && end + 1 == text.size());
    if (last && open) {
      piece(TextPiece{text.substr(at), !begun, false});
      return;
    }
    std::string_view whole = text.substr(at, last ? std::string_view::npos : end - at);
    while (whole.ends_with('\r')) whole.remove_suffix(1);
    piece(TextPiece{whole, !begun, true});
    if (last || end + 1 == text.size()) return;
    begun = false;
    at = end + 1;
  }
}

}  // namespace tessera::data
