#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

// [Note: token folders] Written by `tessera data prepare` and memory-mapped by training:
//   tokens.json        the tokenizer's name, fingerprint and vocabulary; the shards with their
//                      counts and checksums; how the text was read. Written last: without it the
//                      folder is unfinished, and prepare resumes where it stopped.
//   tokens-00000.bin   the documents concatenated, u16 or u32 little-endian by vocabulary, each
//                      with the token that ends it
//   tokens-00000.idx   u64 little-endian: end of each document in tokens
//   tokens-00000.mask  one bit per token, lowest first; only if some tokens have no loss
//   tokenizer files    copied unchanged, for decoding
// A document may continue in the next shard. It is counted where it ends, and its end is relative
// to the start of that shard. While prepare runs, prepare.json stores its progress.
// A single .bin of llm.c (header of 256 int32, magic 20240520 and u16, or magic 20240801 and u32)
// or of nanoGPT (u16, no header) is supported too, as one document: it does not store their ends.
inline constexpr const char* kPreparingName = "prepare.json";

// Range of tokens of one document.
struct Document {
  std::uint64_t begin = 0, end = 0;  // in tokens over all shards
};

// Tokens of a folder, a .bin, or a part of them.
class TokenData {
 public:
  virtual ~TokenData() = default;

  virtual std::string path() const = 0;
  virtual std::uint64_t tokens() const = 0;
  virtual std::uint64_t documents() const = 0;
  virtual std::int64_t vocab() const = 0;           // all ids are below; 0: unknown
  virtual std::string fingerprint() const = 0;      // of the tokenizer; "": unknown
  virtual std::uint64_t bytes_of_text() const = 0;  // that these tokens encode; 0: unknown
  virtual bool masked() const = 0;                  // some tokens are excluded from the loss

  virtual Document document(std::uint64_t number) const = 0;
  virtual std::uint64_t document_at(std::uint64_t token) const = 0;  // number of the document there
  // Reads tokens [begin, begin + out.size()). Thread-safe.
  virtual void read(std::uint64_t begin, std::span<std::int64_t> out) const = 0;
  // Reads 1 for each token that has a loss, otherwise 0. All are 1 if !masked(). Thread-safe.
  virtual void read_mask(std::uint64_t begin, std::span<std::uint8_t> out) const = 0;
};

// Opens a folder or a .bin file. Throws UsageError if it does not exist, DataError (file, value,
// expected value) if it is unfinished, truncated or inconsistent.
std::unique_ptr<TokenData> open_tokens(const std::string& path);
bool is_token_data(const std::string& path);  // a folder with tokens.json, or a .bin
// Verifies everything: checksums (except of views, which have no files), and that all ids are below
// `vocab` (vocab() if 0). Throws DataError with the document and the position. `report` is called
// with the bytes done so far. (read() also rejects ids that are not below vocab(), if known.)
void verify_tokens(const TokenData& data, std::int64_t vocab = 0,
                   const std::function<void(std::uint64_t)>& report = {});

class Tokenizer;
// Returns the tokenizer from the files next to the tokens; null for a .bin. Throws DataError if its
// fingerprint differs from that of the tokens.
std::unique_ptr<Tokenizer> tokenizer_of(const TokenData& data);

// Opens a text file as one document with one token per byte (0 to 255). Throws UsageError if the
// file does not exist, and DataError with the position if it is not UTF-8 (only the first 16 MiB
// are checked).
std::shared_ptr<const TokenData> text_tokens(const std::string& path);

// Splits off the last `fraction` of the tokens for validation, by whole documents if there are
// several. Throws DataError if one of the two would be empty.
struct SplitTokens {
  std::shared_ptr<const TokenData> training, validation;
};
SplitTokens split(const std::shared_ptr<const TokenData>& data, double fraction);

}  // namespace tessera::data
