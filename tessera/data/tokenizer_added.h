#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// Finds added tokens in a text: the leftmost, and of those the longest.
class AddedTokenFinder {
 public:
  AddedTokenFinder();
  // Adds a token that is matched by `text`. Of tokens with equal text, the first one is found.
  void add(const AddedToken& token, const std::string& text);
  bool empty() const { return tokens_.empty(); }

  // Calls piece(begin, end) for the text between tokens and token(id) for each token, in order.
  // `special` is EncodeOptions::special.
  template <typename Piece, typename Token>
  void split(std::string_view text, bool special, const Piece& piece, const Token& token) const {
    std::size_t done = 0;
    Found found;
    for (std::size_t from = 0; from < text.size() && find(text, from, found); from = found.end) {
      if (!is_allowed(text, special, found)) continue;
      Found taken = found;
      take_spaces(text, done, taken);
      if (done < taken.begin) piece(done, taken.begin);
      token(tokens_[found.token].id);
      done = taken.end;
    }
    if (done < text.size()) piece(done, text.size());
  }

 private:
  struct Found {
    std::size_t begin = 0, end = 0;
    std::uint32_t token = 0;
  };
  struct Node {
    unsigned char byte = 0;
    std::int32_t child = -1, sibling = -1, token = -1;
  };
  struct Flags {
    TokenId id;
    bool single_word, lstrip, rstrip, special;
  };

  bool find(std::string_view text, std::size_t from, Found& found) const;
  bool is_allowed(std::string_view text, bool special, const Found& found) const;
  void take_spaces(std::string_view text, std::size_t done, Found& found) const;
  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
  std::array<std::int32_t, 256> first_;  // root nodes by first byte
  std::vector<Flags> tokens_;
};

}  // namespace tessera::data
