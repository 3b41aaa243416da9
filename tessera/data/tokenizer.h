#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

using TokenId = std::uint32_t;

// Options of Tokenizer::encode().
struct EncodeOptions {
  // Encodes the text of a special token ("<|endoftext|>") as that token. Turn it off for untrusted
  // text that must not end a document.
  bool special = true;
  // Adds the tokens that the tokenizer puts around a text (a begin-of-text token, for example).
  bool around = false;
  // Context before the text. Tokenizers that mark spaces add a mark at the start of a text, some
  // also after a token, but none where a text continues.
  enum class Behind : std::uint8_t { nothing, token, text } behind = Behind::nothing;
};

// Converts text to token ids and back. All methods are const and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;
  virtual std::int64_t vocab() const = 0;  // all ids are below
  // SHA-256 of everything that determines the ids: tokenizers with equal fingerprints give equal
  // ids for every text.
  virtual std::string fingerprint() const = 0;

  // Appends the ids of a text, which must be valid UTF-8: see clean_utf8().
  virtual void encode(std::string_view text, std::vector<TokenId>& out,
                      const EncodeOptions& options = {}) const = 0;
  // Returns true if cutting a text before a single space between letters, and encoding the second
  // part as `Behind::text`, does not change the ids. If false, only cuts at line ends are safe.
  virtual bool may_cut_at_space() const { return false; }
  // Returns the bytes of ids; they may end inside a character. Throws DataError for an id that does
  // not exist. `skip_special`: drops special tokens.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special = false) const = 0;

  virtual std::optional<TokenId> find(std::string_view token) const = 0;  // by its text
  virtual bool is_special(TokenId id) const = 0;
  // Token that separates documents and ends an answer. nullopt if the files name none.
  virtual std::optional<TokenId> end_of_text() const = 0;
  virtual std::optional<TokenId> begin_of_text() const = 0;
  // [Note: beginning of a text] Tokens that the tokenizer puts before a text: those of the file's
  // post-processor, whether or not another file names one as bos_token. Training data (`tessera
  // data prepare`) and prompts (`tessera generate`) both start with these.
  virtual std::vector<TokenId> before_text() const { return {}; }
  // Notes for the user about ignored parts of its files.
  virtual std::vector<std::string> notes() const { return {}; }
};

// Returns a tokenizer with one token per byte and 256 as the end of a document. Accepts any bytes.
std::unique_ptr<Tokenizer> byte_tokenizer();

// Loads "bytes", a tokenizer.json, or a folder that has one (the tokenizer_config.json next to it
// names the special tokens). Throws UsageError if there is no such file, DataError if it is invalid
// or uses unsupported features, which are named.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& where);

// Handling of text that is not UTF-8.
enum class BadUtf8 : std::uint8_t { replace, refuse };
// Result of clean_utf8().
struct CleanText {
  std::string_view text;      // the input, or the contents of `storage`
  std::int64_t replaced = 0;  // number of byte sequences replaced by U+FFFD
};
// Replaces invalid UTF-8 the usual way: one U+FFFD for each longest prefix of a character. Throws
// DataError with the offset if `policy` is refuse.
CleanText clean_utf8(std::string_view text, BadUtf8 policy, std::string& storage);

}  // namespace tessera::data
