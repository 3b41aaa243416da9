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

// What a tokenizer.json says, checked. A text goes through it from the top down: special tokens are
// cut out, what is left is normalized, added tokens are cut out of that, the rest is cut into
// words, and each word becomes tokens.

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the spaces before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in normalized text
  bool special = false;
};

struct NormalizerStep {
  enum class Kind : std::uint8_t { nfc, nfd, prepend, replace };
  Kind kind = Kind::nfc;
  std::string text;                        // to prepend, or to put in the place of a match
  std::shared_ptr<const Pattern> pattern;  // of replace
};

enum class SplitBehavior : std::uint8_t {
  isolated,
  removed,
  contiguous,
  merged_with_previous,
  merged_with_next
};

struct PreTokenizerStep {
  enum class Kind : std::uint8_t { split, digits, metaspace, byte_level };
  enum class Prepend : std::uint8_t { always, first, never };
  Kind kind = Kind::split;
  std::shared_ptr<const Pattern> pattern;            // of split, and of byte_level where it has one
  SplitBehavior behavior = SplitBehavior::isolated;  // of split, digits, metaspace
  bool invert = false;                               // the matches are what is between
  bool prefix_space = false;                         // of byte_level
  std::string replacement;                           // of metaspace, for a space
  Prepend prepend = Prepend::always;
  bool cut = true;  // metaspace: into words
};

struct DecoderStep {
  enum class Kind : std::uint8_t { byte_level, metaspace, replace, byte_fallback, fuse, strip };
  Kind kind = Kind::fuse;
  std::string from, to;              // of replace; `from` of metaspace and strip
  bool drop_first = false;           // metaspace: none for the marks of the first token
  std::int64_t start = 0, stop = 0;  // strip: at most so many at either end
};

struct TokenizerSpec {
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;      // byte_level, if there is one, comes last
  std::optional<std::vector<DecoderStep>> decoder;  // nothing: tokens with spaces between
  std::vector<TokenId> before, behind;              // what is put around a text
  BpeModel model;
  std::string missing_unknown;  // a name for unknown characters that no token has
  std::string fingerprint;
  std::vector<std::string> notes;  // parts of the file that are ignored
};

// Most bytes that the steps of a tokenizer may make of a text or a token: chained replacements
// could otherwise turn a short text into gigabytes. NFD makes three bytes of one at most, and marks
// for spaces take three.
constexpr std::size_t most_bytes_of(std::size_t size) { return 16 * size + 1024; }

// Throws DataError for what is bad or not known, by its name; `where` names the file.
TokenizerSpec parse_tokenizer(std::string_view json, const std::string& where);

// The names of the tokens that begin and end a text, from tokenizer_config.json or
// special_tokens_map.json. Empty: none named.
struct NamedTokens {
  std::string begin, end;
};
NamedTokens parse_named_tokens(std::string_view json, const std::string& where);
// The same as ids, from generation_config.json or config.json.
struct NumberedTokens {
  std::optional<TokenId> begin, end;
};
NumberedTokens parse_numbered_tokens(std::string_view json, const std::string& where);

}  // namespace tessera::data
