#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/bpe.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_pattern.h"

namespace tessera::data {

// Validated contents of a tokenizer.json. A text passes through it in this order: special tokens
// are cut out, the rest is normalized, added tokens are cut out of that, the remaining text is
// split into words, and each word is encoded.

// Token besides those of the model.
struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // only without adjacent word characters
  bool lstrip = false;       // absorbs the spaces before it
  bool rstrip = false;       // absorbs the spaces after it
  bool normalized = false;   // matched in normalized text
  bool special = false;
};

// Step of the normalizer.
struct NormalizerStep {
  enum class Kind : std::uint8_t { nfc, nfd, prepend, replace };
  Kind kind = Kind::nfc;
  std::string text;                        // text to prepend, or replacement of a match
  std::shared_ptr<const Pattern> pattern;  // of replace
};

// Treatment of the matches of a split.
enum class SplitBehavior : std::uint8_t {
  isolated,
  removed,
  contiguous,
  merged_with_previous,
  merged_with_next
};

// Step of the pre-tokenizer.
struct PreTokenizerStep {
  enum class Kind : std::uint8_t { split, digits, metaspace, byte_level };
  enum class Prepend : std::uint8_t { always, first, never };
  Kind kind = Kind::split;
  std::shared_ptr<const Pattern> pattern;            // of split, and of byte_level if it has one
  SplitBehavior behavior = SplitBehavior::isolated;  // of split, digits, metaspace
  bool invert = false;        // matches and the text between them are swapped
  bool prefix_space = false;  // of byte_level
  std::string replacement;    // of metaspace: replaces a space
  Prepend prepend = Prepend::always;
  bool cut = true;  // metaspace: split into words
};

// Step of the decoder.
struct DecoderStep {
  enum class Kind : std::uint8_t { byte_level, metaspace, replace, byte_fallback, fuse, strip };
  Kind kind = Kind::fuse;
  std::string from, to;              // of replace; `from` of metaspace and strip
  bool drop_first = false;           // metaspace: drops the marks of the first token
  std::int64_t start = 0, stop = 0;  // strip: maximum number at the start and the end
};

// Contents of a tokenizer.json.
struct TokenizerSpec {
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;      // byte_level, if any, is last
  std::optional<std::vector<DecoderStep>> decoder;  // nullopt: tokens are joined by spaces
  std::vector<TokenId> before, behind;              // added around a text
  BpeModel model;
  std::string missing_unknown;  // unk_token that is not in the vocabulary
  std::string fingerprint;
  std::vector<std::string> notes;  // parts of the file that are ignored
};

// Maximum output size of a tokenizer's steps for a text or token of `size` bytes: chained
// replacements could otherwise turn a short text into gigabytes. NFD at most triples the size, and
// marks for spaces take three bytes.
constexpr std::size_t most_bytes_of(std::size_t size) { return 16 * size + 1024; }

// Parses a tokenizer.json. Throws DataError that names what is invalid or unsupported; `where`
// names the file.
TokenizerSpec parse_tokenizer(std::string_view json, const std::string& where);

// Names of the tokens that begin and end a text, from tokenizer_config.json or
// special_tokens_map.json. "": not named.
struct NamedTokens {
  std::string begin, end;
};
NamedTokens parse_named_tokens(std::string_view json, const std::string& where);
// Ids of these tokens, from generation_config.json or config.json.
struct NumberedTokens {
  std::optional<TokenId> begin, end;
};
NumberedTokens parse_numbered_tokens(std::string_view json, const std::string& where);

}  // namespace tessera::data
