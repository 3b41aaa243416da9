#include "tessera/data/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tessera/core/text.h"
#include "tessera/core/utf8.h"

namespace tessera::data {
namespace {

constexpr TokenId kNoToken = 0xffffffff;
constexpr std::size_t kShortSymbols =
    40;  // up to here a linear scan of the pairs is faster than a queue

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t hash = (a ^ 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu ^ b;
  return (hash ^ hash >> 32) * 0xc4ceb9fe1a85ec53u;
}

template <typename Word>
Word loaded(const char* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  char32_t other = 256;  // other bytes map to characters after Latin-1
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    const char32_t c = printable ? static_cast<char32_t>(byte) : other++;
    append_utf8(of_byte[byte], c);
    of_character[c] = static_cast<std::uint8_t>(byte);
  }
}

bool ByteAlphabet::bytes(std::string_view text, std::string& out) const {
  out.clear();
  for (std::size_t at = 0; at < text.size();) {
    const auto found = of_character.find(utf8_next(text, at));
    if (found == of_character.end()) return false;
    out.push_back(static_cast<char>(found->second));
  }
  return true;
}

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

// One cache line, with the word in its first bytes.
struct alignas(64) Bpe::Scratch::Word {
  static constexpr std::size_t kMaxBytes = 24, kMaxIds = 9;
  static constexpr std::size_t kWords = std::size_t{1} << 15;
  char text[kMaxBytes];
  std::uint8_t size, count;  // size 0: unused
  TokenId ids[kMaxIds];
};

struct Bpe::Scratch::Node {
  std::uint32_t before, behind;  // kNoRank: none
  TokenId id;
  std::uint32_t rank;  // of the pair with the next symbol; kNoRank: none
  TokenId result;
};

Bpe::Scratch::Scratch() = default;
Bpe::Scratch::~Scratch() = default;
Bpe::Scratch::Scratch(Scratch&&) noexcept = default;
void Bpe::Scratch::FreeWords::operator()(Word* words) const { delete[] words; }

Bpe::Bpe(const BpeModel& model)
    : unknown_(model.unknown),
      fuse_unknown_(model.fuse_unknown),
      byte_fallback_(model.byte_fallback),
      byte_level_(model.byte_level) {
  const auto id_of = [&](const std::string& text) {
    const auto found = model.ids.find(text);
    return found == model.ids.end() ? kNoToken : found->second;
  };
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * model.merges.size(), 16));
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(slots));
  pairs_.assign(slots, {kNoToken, kNoToken, kNoRank, kNoToken});
  for (std::size_t i = 0; i < model.merges.size(); ++i) {
    const BpeMerge& merge = model.merges[i];
    std::size_t at = mixed(merge.left, merge.right) >> shift_;
    while (pairs_[at].rank != kNoRank &&
           (pairs_[at].left != merge.left || pairs_[at].right != merge.right)) {
      at = (at + 1) & (slots - 1);
    }
    // For a repeated pair the last entry counts.
    pairs_[at] = {merge.left, merge.right, static_cast<std::uint32_t>(i), merge.result};
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_of(byte_alphabet().of_byte[byte]);
    static constexpr const char* digits = "0123456789ABCDEF";
    const std::string name = str("<0x", digits[byte >> 4], digits[byte & 15], ">");
    fallback_[byte] = id_of(name);
  }
  pages_.assign(0x110000 / 256, -1);
  if (model.ignore_merges) whole_.reserve(model.ids.size());
  std::string bytes;
  for (const auto& [text, id] : model.ids) {
    if (!byte_level_ && !text.empty() && utf8_length(text[0]) == text.size()) {
      std::size_t at = 0;
      const char32_t c = utf8_next(text, at);
      if (pages_[c >> 8] < 0) {
        pages_[c >> 8] = static_cast<std::int32_t>(page_ids_.size());
        page_ids_.resize(page_ids_.size() + 256, kNoToken);
      }
      page_ids_[static_cast<std::size_t>(pages_[c >> 8]) + (c & 255)] = id;
    }
    if (!model.ignore_merges) continue;
    if (!byte_level_) {
      whole_[text] = id;
    } else if (byte_alphabet().bytes(text, bytes)) {
      whole_[bytes] = id;
    }
  }
}

const Bpe::Pair* Bpe::find(TokenId left, TokenId right) const {
  std::size_t at = mixed(left, right) >> shift_;
  while (true) {
    const Pair& pair = pairs_[at];
    if (pair.left == left && pair.right == right) return &pair;
    if (pair.rank == kNoRank) return nullptr;
    at = (at + 1) & (pairs_.size() - 1);
  }
}

// Appends a character that is not a token. `waiting` is a pending unknown token that the next one
// may be fused with.
void Bpe::add_unknown(std::string_view character, std::vector<TokenId>& out,
                      std::optional<TokenId>& waiting) const {
  if (byte_fallback_) {
    bool all = true;
    for (const char c : character) all &= fallback_[static_cast<unsigned char>(c)] != kNoToken;
    if (all) {
      for (const char c : character) out.push_back(fallback_[static_cast<unsigned char>(c)]);
      return;
    }
  }
  if (!unknown_) return;
  if (waiting && !fuse_unknown_) out.push_back(*waiting);
  waiting = unknown_;
}

void Bpe::start(std::string_view word, std::vector<TokenId>& symbols) const {
  symbols.clear();
  std::optional<TokenId> waiting;
  const auto add = [&](TokenId id, std::string_view character) {
    if (id == kNoToken) return add_unknown(character, symbols, waiting);
    if (waiting) symbols.push_back(*waiting);
    waiting.reset();
    symbols.push_back(id);
  };
  if (byte_level_) {
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      add(byte_ids_[byte], byte_alphabet().of_byte[byte]);
    }
  } else {
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t begin = at;
      const char32_t c = utf8_next(word, at);
      const std::int32_t page = pages_[c >> 8];
      add(page < 0 ? kNoToken : page_ids_[static_cast<std::size_t>(page) + (c & 255)],
          word.substr(begin, at - begin));
    }
  }
  if (waiting) symbols.push_back(*waiting);
}

void Bpe::merge_short(std::vector<TokenId>& symbols) const {
  std::array<std::uint32_t, kShortSymbols> ranks;
  std::array<TokenId, kShortSymbols> results;
  std::size_t size = symbols.size();
  const auto look = [&](std::size_t i) {
    const Pair* pair = find(symbols[i], symbols[i + 1]);
    ranks[i] = pair == nullptr ? kNoRank : pair->rank;
    results[i] = pair == nullptr ? kNoToken : pair->result;
  };
  for (std::size_t i = 0; i + 1 < size; ++i) look(i);
  while (size > 1) {
    std::size_t best = 0;
    std::uint32_t least = ranks[0];
    for (std::size_t i = 1; i + 1 < size; ++i) {
      if (ranks[i] < least) least = ranks[best = i];
    }
    if (least == kNoRank) break;
    symbols[best] = results[best];
    --size;
    for (std::size_t i = best + 1; i < size; ++i) symbols[i] = symbols[i + 1];
    for (std::size_t i = best; i + 1 < size; ++i) {
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    if (best > 0) look(best - 1);
    if (best + 1 < size) look(best);
  }
  symbols.resize(size);
}

// merge_short() with a queue of pairs by rank and position; outdated entries are skipped.
void Bpe::merge_long(Scratch& scratch) const {
  std::vector<TokenId>& symbols = scratch.symbols_;
  std::vector<Scratch::Node>& nodes = scratch.nodes_;
  std::vector<std::uint64_t>& queue = scratch.queue_;
  const auto size = static_cast<std::uint32_t>(symbols.size());
  nodes.resize(size);
  queue.clear();
  const auto look = [&](std::uint32_t i) {
    Scratch::Node& node = nodes[i];
    const Pair* pair = node.behind == kNoRank ? nullptr : find(node.id, nodes[node.behind].id);
    node.rank = pair == nullptr ? kNoRank : pair->rank;
    if (pair == nullptr) return false;
    node.result = pair->result;
    queue.push_back(std::uint64_t{pair->rank} << 32 | i);
    return true;
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    nodes[i] = {i == 0 ? kNoRank : i - 1, i + 1 == size ? kNoRank : i + 1, symbols[i], kNoRank, 0};
  }
  for (std::uint32_t i = 0; i < size; ++i) look(i);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto push = [&](std::uint32_t i) {
    if (look(i)) std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const std::uint64_t top = queue.back();
    queue.pop_back();
    const auto at = static_cast<std::uint32_t>(top);
    Scratch::Node& node = nodes[at];
    if (node.rank != top >> 32) continue;
    const std::uint32_t gone = node.behind;
    node.id = node.result;
    node.behind = nodes[gone].behind;
    nodes[gone].rank = kNoRank;
    if (node.behind != kNoRank) nodes[node.behind].before = at;
    push(at);
    if (node.before != kNoRank) push(node.before);
  }
  symbols.clear();
  for (std::uint32_t i = 0; i != kNoRank; i = nodes[i].behind) symbols.push_back(nodes[i].id);
}

std::optional<TokenId> Bpe::whole_word(std::string_view word) const {
  if (whole_.empty()) return std::nullopt;
  const auto found = whole_.find(std::string(word));
  if (found == whole_.end()) return std::nullopt;
  return found->second;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  using Word = Scratch::Word;
  const std::size_t size = word.size();
  if (size == 0) return;
  Word* known = nullptr;
  if (size <= Word::kMaxBytes) {
    if (scratch.words_ == nullptr) scratch.words_.reset(new Word[Word::kWords]());
    const char* text = word.data();
    std::uint64_t first = 0, second = 0, third = 0;
    if (size >= 8) {
      first = loaded<std::uint64_t>(text);
      second = loaded<std::uint64_t>(text + size - 8);
      if (size > 16) third = loaded<std::uint64_t>(text + 8);
    } else if (size >= 4) {
      first = loaded<std::uint32_t>(text);
      second = loaded<std::uint32_t>(text + size - 4);
    } else {
      first = static_cast<unsigned char>(text[0]);
      second = static_cast<unsigned char>(text[size / 2]);
      third = static_cast<unsigned char>(text[size - 1]);
    }
    const std::uint64_t hash = mixed(mixed(first, second), third + (std::uint64_t{size} << 56));
    known = &scratch.words_[hash >> 49];
    static_assert(Word::kWords == std::size_t{1} << (64 - 49));
    if (known->size == size && std::memcmp(known->text, text, size) == 0) {
      out.insert(out.end(), known->ids, known->ids + known->count);
      return;
    }
  }
  std::vector<TokenId>& symbols = scratch.symbols_;
  if (const std::optional<TokenId> whole = whole_word(word)) {
    symbols.assign(1, *whole);
  } else {
    start(word, symbols);
    if (symbols.size() <= kShortSymbols) {
      merge_short(symbols);
    } else {
      merge_long(scratch);
    }
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (known != nullptr && symbols.size() <= Word::kMaxIds) {
    std::memcpy(known->text, word.data(), size);
    known->size = static_cast<std::uint8_t>(size);
    known->count = static_cast<std::uint8_t>(symbols.size());
    std::copy(symbols.begin(), symbols.end(), known->ids);
  }
}

void Bpe::encode_reference(std::string_view word, std::vector<TokenId>& out) const {
  if (word.empty()) return;
  std::vector<TokenId> symbols;
  if (const std::optional<TokenId> whole = whole_word(word)) {
    symbols = {*whole};
  } else {
    start(word, symbols);
    while (true) {
      const Pair* best = nullptr;
      std::size_t place = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const Pair* pair = find(symbols[i], symbols[i + 1]);
        if (pair != nullptr && (best == nullptr || pair->rank < best->rank)) best = pair, place = i;
      }
      if (best == nullptr) break;
      symbols[place] = best->result;
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
}

bool may_cut_before(const BpeModel& model, std::string_view mark) {
  if (model.byte_level || model.ignore_merges || model.ids.count(std::string(mark)) == 0)
    return false;
  std::unordered_map<TokenId, std::string_view> texts;
  int fallbacks = 0;
  for (const auto& [text, id] : model.ids) {
    texts[id] = text;
    fallbacks += text.size() == 6 && text.compare(0, 3, "<0x") == 0 && text[5] == '>';
  }
  const auto ends = [&](TokenId id) { return texts[id].ends_with(mark); };
  // An unknown character may be dropped or become a token that looks like a mark.
  if (model.unknown ? ends(*model.unknown) : !model.byte_fallback || fallbacks < 256) return false;
  for (const BpeMerge& merge : model.merges) {
    if (texts[merge.right].starts_with(mark) && !ends(merge.left)) return false;
  }
  return true;
}

}  // namespace tessera::data
