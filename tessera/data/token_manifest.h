#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

inline constexpr const char* kTokensName = "tokens.json";
// Maximum of all shards together: byte counts do not overflow, and JSON readers do not round them.
inline constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 52;
inline constexpr std::int64_t kMaxTokensJson = std::int64_t{64} << 20;  // bytes of tokens.json

// Shard of a token folder.
struct TokenShard {
  std::string name;  // "tokens-00000", without .bin, .idx and .mask
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;  // number that end in it
  std::uint32_t bin_crc = 0, idx_crc = 0, mask_crc = 0;

  friend bool operator==(const TokenShard&, const TokenShard&) = default;
};

// Contents of tokens.json. See [Note: token folders].
struct TokenManifest {
  std::string tokenizer;  // name of the tokenizer
  std::string fingerprint;
  std::int64_t vocab = 0;
  std::optional<std::uint32_t> end_of_text;
  int bytes_per_token = 2;
  bool masked = false;
  std::uint64_t bytes_of_text = 0;
  std::map<std::string, std::string> reading;  // how the text was read; informational
  std::vector<TokenShard> shards;

  std::uint64_t tokens() const;
  std::uint64_t documents() const;
  friend bool operator==(const TokenManifest&, const TokenManifest&) = default;
};

// Returns 2 (u16) if every id fits, otherwise 4 (u32).
constexpr int bytes_per_token(std::int64_t vocab) { return vocab <= 65536 ? 2 : 4; }
std::string shard_name(std::uint64_t number);

std::string to_text(const TokenManifest& manifest);
// Throws DataError that starts with `where`.
TokenManifest parse_token_manifest(std::string_view text, const std::string& where);
TokenManifest read_token_manifest(const std::string& folder);

}  // namespace tessera::data
