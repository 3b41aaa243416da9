#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

// GPT-2's alphabet: a printable character for each byte, as vocabularies of byte-level tokenizers
// are written.
struct ByteAlphabet {
  ByteAlphabet();
  std::array<std::string, 256> of_byte;
  std::unordered_map<char32_t, std::uint8_t> of_character;

  // The bytes that a text in this alphabet stands for. False: it has characters of no byte.
  bool bytes(std::string_view text, std::string& out) const;
};
const ByteAlphabet& byte_alphabet();

struct BpeMerge {
  TokenId left = 0, right = 0, result = 0;
};

// What a file says about byte pair encoding.
struct BpeModel {
  std::unordered_map<std::string, TokenId> ids;
  std::vector<BpeMerge> merges;  // the earlier, the sooner
  std::optional<TokenId> unknown;
  bool fuse_unknown = false;   // one token for unknown characters side by side
  bool byte_fallback = false;  // an unknown character as its bytes: "<0x0A>"
  bool ignore_merges = false;  // a word that is a token becomes that
  bool byte_level = false;     // words are bytes, and tokens in the alphabet above
};

// Byte pair encoding of single words.
class Bpe {
 public:
  explicit Bpe(const BpeModel& model);

  // What encoding writes to: one for each thread. Remembers short words.
  class Scratch {
   public:
    Scratch();

   private:
    friend class Bpe;
    struct Word;  // a short word and its ids
    struct Node;  // a symbol of a long one
    struct FreeWords {
      void operator()(Word* words) const;
    };
    std::unique_ptr<Word[], FreeWords> words_;
    std::vector<TokenId> symbols_;
    std::vector<Node> nodes_;
    std::vector<std::uint64_t> queue_;

   public:
    ~Scratch();
    Scratch(Scratch&&) noexcept;
  };

  // Appends the ids of a word: any bytes where it is byte-level, else whole characters.
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  // The same without a memory, and by looking for the next merge again and again.
  void encode_slowly(std::string_view word, std::vector<TokenId>& out) const;

 private:
  struct Pair {
    TokenId left, right;
    std::uint32_t rank;
    TokenId result;
  };
  static constexpr std::uint32_t kNoRank = 0xffffffff;

  const Pair* find(TokenId left, TokenId right) const;
  void add_unknown(std::string_view character, std::vector<TokenId>& out,
                   std::optional<TokenId>& waiting) const;
  void start(std::string_view word, std::vector<TokenId>& symbols) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(Scratch& scratch) const;
  std::optional<TokenId> whole_word(std::string_view word) const;

  std::vector<Pair> pairs_;  // a hash table with open addressing
  unsigned shift_ = 0;
  std::array<TokenId, 256> byte_ids_{};  // kNoToken: see add_unknown()
  std::vector<std::int32_t> pages_;      // of 256 characters, each at an offset in page_ids_; or -1
  std::vector<TokenId> page_ids_;
  std::array<TokenId, 256> fallback_{};             // of "<0x00>" and so on
  std::unordered_map<std::string, TokenId> whole_;  // with ignore_merges
  std::optional<TokenId> unknown_;
  bool fuse_unknown_, byte_fallback_, byte_level_;
};

// Whether no token that merging makes has `mark` behind anything but itself: then a text may be cut
// before each mark that follows something else, and gives the same ids.
bool may_cut_before(const BpeModel& model, std::string_view mark);

}  // namespace tessera::data
