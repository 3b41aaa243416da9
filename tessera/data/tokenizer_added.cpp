#include "tessera/data/tokenizer_added.h"

#include <algorithm>

#include "tessera/core/utf8.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

AddedTokenFinder::AddedTokenFinder() { first_.fill(-1); }

std::int32_t AddedTokenFinder::child(std::int32_t node, unsigned char byte) const {
  for (std::int32_t i = nodes_[static_cast<std::size_t>(node)].child; i >= 0;) {
    const Node& each = nodes_[static_cast<std::size_t>(i)];
    if (each.byte == byte) return i;
    i = each.sibling;
  }
  return -1;
}

void AddedTokenFinder::add(const AddedToken& token, const std::string& text) {
  std::int32_t at = -1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    std::int32_t next = i == 0 ? first_[byte] : child(at, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back({byte, -1, -1, -1});
      if (i == 0) {
        first_[byte] = next;
      } else {
        Node& above = nodes_[static_cast<std::size_t>(at)];
        nodes_.back().sibling = above.child;
        above.child = next;
      }
    }
    at = next;
  }
  Node& last = nodes_[static_cast<std::size_t>(at)];
  if (last.token < 0) last.token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip, token.special});
}

bool AddedTokenFinder::find(std::string_view text, std::size_t from, Found& found) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    std::int32_t node = first_[static_cast<unsigned char>(text[begin])];
    if (node < 0) continue;
    std::int32_t token = -1;
    for (std::size_t at = begin + 1; node >= 0; ++at) {
      const Node& here = nodes_[static_cast<std::size_t>(node)];
      if (here.token >= 0) {
        token = here.token;
        found.end = at;
      }
      if (at == text.size()) break;
      node = child(node, static_cast<unsigned char>(text[at]));
    }
    if (token >= 0) {
      found.begin = begin;
      found.token = static_cast<std::uint32_t>(token);
      return true;
    }
  }
  return false;
}

bool AddedTokenFinder::is_allowed(std::string_view text, bool special, const Found& found) const {
  const Flags& token = tokens_[found.token];
  if (token.special && !special) return false;
  if (!token.single_word) return true;
  const auto word = [](char32_t c) { return (unicode().classes[c] & kWordCharacter) != 0; };
  if (found.begin > 0) {
    std::size_t before = utf8_before(text, found.begin);
    if (word(utf8_next(text, before))) return false;
  }
  std::size_t behind = found.end;
  return behind == text.size() || !word(utf8_next(text, behind));
}

void AddedTokenFinder::take_spaces(std::string_view text, std::size_t done, Found& found) const {
  const auto space = [](char32_t c) { return (unicode().classes[c] & kSpace) != 0; };
  if (tokens_[found.token].lstrip) {
    while (found.begin > done) {
      const std::size_t before = utf8_before(text, found.begin);
      std::size_t at = before;
      if (!space(utf8_next(text, at))) break;
      found.begin = before;
    }
  }
  if (tokens_[found.token].rstrip) {
    while (found.end < text.size()) {
      std::size_t behind = found.end;
      if (!space(utf8_next(text, behind))) break;
      found.end = behind;
    }
  }
  found.end = std::max(found.end, done);
}

}  // namespace tessera::data
