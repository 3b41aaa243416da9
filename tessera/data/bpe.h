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

// GPT-2's byte alphabet: one printable character per byte, used in the vocabularies of byte-level
// tokenizers.
struct ByteAlphabet {
  ByteAlphabet();
  std::array<std::string, 256> of_byte;
  std::unordered_map<char32_t, std::uint8_t> of_character;

  // Converts a text in this alphabet to bytes. Returns false if it has other characters.
  bool bytes(std::string_view text, std::string& out) const;
};
const ByteAlphabet& byte_alphabet();

// Merge of two tokens into one.
struct BpeMerge {
  TokenId left = 0, right = 0, result = 0;
};

// Byte pair encoding model of a tokenizer file.
struct BpeModel {
  std::unordered_map<std::string, TokenId> ids;
  std::vector<BpeMerge> merges;  // by priority, highest first
  std::optional<TokenId> unknown;
  bool fuse_unknown = false;   // merges adjacent unknown characters into one token
  bool byte_fallback = false;  // encodes an unknown character as its bytes: "<0x0A>"
  bool ignore_merges = false;  // a word that is a token is not split
  bool byte_level = false;     // words are bytes, tokens use the byte alphabet
};

// Encodes single words with byte pair encoding.
class Bpe {
 public:
  explicit Bpe(const BpeModel& model);

  // Buffers of encode(), one per thread. Caches short words.
  class Scratch {
   public:
    Scratch();

   private:
    friend class Bpe;
    struct Word;  // cached short word and its ids
    struct Node;  // symbol of a long word
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

  // Appends the ids of a word: any bytes if byte-level, otherwise whole characters.
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  // Reference implementation without a cache, which searches for the next merge each time.
  void encode_reference(std::string_view word, std::vector<TokenId>& out) const;

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

  std::vector<Pair> pairs_;  // hash table with open addressing
  unsigned shift_ = 0;
  std::array<TokenId, 256> byte_ids_{};  // kNoToken: see add_unknown()
  std::vector<std::int32_t> pages_;      // offset in page_ids_ per 256 characters; -1: none
  std::vector<TokenId> page_ids_;
  std::array<TokenId, 256> fallback_{};             // ids of "<0x00>" to "<0xFF>"
  std::unordered_map<std::string, TokenId> whole_;  // tokens by text, if ignore_merges
  std::optional<TokenId> unknown_;
  bool fuse_unknown_, byte_fallback_, byte_level_;
};

// Returns true if no merged token contains `mark` after other characters. A text can then be cut
// before each such mark without changing the ids.
bool may_cut_before(const BpeModel& model, std::string_view mark);

}  // namespace tessera::data
