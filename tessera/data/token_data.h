#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

// [Note: token folders] What `tessera data prepare` writes, and training reads through memory maps:
//   tokens.json        the tokenizer's name, fingerprint and vocabulary; the shards with their
//                      counts and checksums; how the text was read. Written last: without it a
//                      folder is unfinished, and prepare goes on where it stopped.
//   tokens-00000.bin   the documents one behind the other, u16 or u32 little-endian by vocabulary,
//                      each with the token that ends it
//   tokens-00000.idx   u64 little-endian: where each document ends, counted in tokens
//   tokens-00000.mask  only where some tokens are not to be learnt: a bit a token, lowest first
//   tokenizer files    as they were, for whoever decodes
// A document may go on in the next shard; it is counted where it ends, and its end there is counted
// from the beginning of that shard. While prepare runs, prepare.json says how far it came.
// A single .bin of llm.c (header of 256 int32, magic 20240520 and u16, or magic 20240801 and u32)
// or of nanoGPT (u16, no header) is read too, as one document: it says nothing of their ends.
inline constexpr const char* kPreparingName = "prepare.json";

struct Document {
  std::uint64_t begin = 0, end = 0;  // tokens, counted over all shards
};

class TokenData {
 public:
  virtual ~TokenData() = default;

  virtual std::string path() const = 0;
  virtual std::uint64_t tokens() const = 0;
  virtual std::uint64_t documents() const = 0;
  virtual std::int64_t vocab() const = 0;           // every id is below; 0: not known
  virtual std::string fingerprint() const = 0;      // of the tokenizer; "": not known
  virtual std::uint64_t bytes_of_text() const = 0;  // that became these tokens; 0: not known
  virtual bool masked() const = 0;                  // are there tokens not to be learnt?

  virtual Document document(std::uint64_t number) const = 0;
  virtual std::uint64_t document_at(std::uint64_t token) const = 0;  // the number of the one there
  // Tokens [begin, begin + out.size()) of all. From any thread.
  virtual void read(std::uint64_t begin, std::span<std::int64_t> out) const = 0;
  // Likewise: is each to be learnt? All are where !masked().
  virtual void read_mask(std::uint64_t begin, std::span<std::uint8_t> out) const = 0;
};

// A folder, or a .bin file. Throws UsageError where there is none, DataError (file, what it has,
// what was wanted) for one that is unfinished, truncated or not what its sizes say.
std::unique_ptr<TokenData> open_tokens(const std::string& path);
bool is_token_data(const std::string& path);  // a folder with tokens.json, or a .bin
// Reads all of it: checksums (not of a part of other tokens, which has no files), and every id
// below `vocab` (its own where that is 0). Throws DataError with the document and the position.
// `told` hears of the bytes done so far. (read() refuses an id that is not below vocab() too, where
// that is known.)
void verify_tokens(const TokenData& data, std::int64_t vocab = 0,
                   const std::function<void(std::uint64_t)>& told = {});

class Tokenizer;
// What the tokens were made with, from the files beside them; nothing for a .bin. Throws DataError
// where these are not those.
std::unique_ptr<Tokenizer> tokenizer_of(const TokenData& data);

}  // namespace tessera::data
