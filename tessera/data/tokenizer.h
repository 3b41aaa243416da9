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

struct EncodeOptions {
  // Text that is that of a special token ("<|endoftext|>") becomes this token. Off for text from
  // elsewhere that should not be able to end a document.
  bool special = true;
  // What the tokenizer puts around a text by itself (a token for its beginning, say).
  bool around = false;
  // What stands before the text: tokenizers that mark spaces put a mark at the beginning of a
  // text, some of them behind a token too, and none where a text goes on.
  enum class Behind : std::uint8_t { nothing, token, text } behind = Behind::nothing;
};

// Text to numbers and back. All calls are const and may come from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;
  virtual std::int64_t vocab() const = 0;  // every id is below
  // Two tokenizers with the same one give the same ids for every text: a SHA-256 of what decides.
  virtual std::string fingerprint() const = 0;

  // Appends the ids of a text, which is valid UTF-8: see clean_utf8().
  virtual void encode(std::string_view text, std::vector<TokenId>& out,
                      const EncodeOptions& options = {}) const = 0;
  // May a text be cut before a single space between letters, and the second part be encoded as
  // `Behind::text`, without a change of the ids? False where only the ends of lines are sure.
  virtual bool may_cut_at_space() const { return false; }
  // The bytes of ids; a part of a text may end inside a character. Throws DataError for an id that
  // there is none of. `skip_special`: special tokens leave nothing.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special = false) const = 0;

  virtual std::optional<TokenId> find(std::string_view token) const = 0;  // by its own text
  virtual bool is_special(TokenId id) const = 0;
  // What stands between documents, and what ends an answer. Nothing where the files name none.
  virtual std::optional<TokenId> end_of_text() const = 0;
  virtual std::optional<TokenId> begin_of_text() const = 0;
  // [Note: beginning of a text] The tokens that the tokenizer puts before a text by itself: those
  // of the file's post-processor, whether or not another file names one as bos_token. Training data
  // (`tessera data prepare`) and prompts (`tessera generate`) both begin with these.
  virtual std::vector<TokenId> before_text() const { return {}; }
  // Notes for the user about its files: parts that are ignored.
  virtual std::vector<std::string> notes() const { return {}; }
};

// 256 tokens, a byte each, and one that ends a document (256). Takes any bytes.
std::unique_ptr<Tokenizer> byte_tokenizer();

// "bytes", a tokenizer.json, or a folder that has one (tokenizer_config.json beside it names the
// special tokens). Throws UsageError where there is no such file, DataError for one that is bad or
// asks for what is not there, by its name.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& where);

// What to do about text that is not UTF-8.
enum class BadUtf8 : std::uint8_t { replace, refuse };
struct CleanText {
  std::string_view text;      // the same, or what is in `storage`
  std::int64_t replaced = 0;  // sequences of bytes that became U+FFFD
};
// As most programs replace: one U+FFFD for each largest part that could have begun a character.
// Throws DataError with the offset where it is to refuse.
CleanText clean_utf8(std::string_view text, BadUtf8 policy, std::string& storage);

}  // namespace tessera::data
