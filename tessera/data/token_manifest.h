#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

inline constexpr const char* kTokensName = "tokens.json";
// Of all shards together: no count of bytes overflows, and none that JSON's readers would round.
inline constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 52;
inline constexpr std::int64_t kMostTokensJson = std::int64_t{64} << 20;  // bytes of tokens.json

struct TokenShard {
  std::string name;  // "tokens-00000": of its files in front of .bin, .idx and .mask
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;  // that end in it
  std::uint32_t bin_crc = 0, idx_crc = 0, mask_crc = 0;

  friend bool operator==(const TokenShard&, const TokenShard&) = default;
};

// What tokens.json says. See [Note: token folders].
struct TokenManifest {
  std::string tokenizer;  // its name
  std::string fingerprint;
  std::int64_t vocab = 0;
  std::optional<std::uint32_t> end_of_text;
  int bytes_per_token = 2;
  bool masked = false;
  std::uint64_t bytes_of_text = 0;
  std::map<std::string, std::string> reading;  // how the text was read: shown, never acted upon
  std::vector<TokenShard> shards;

  std::uint64_t tokens() const;
  std::uint64_t documents() const;
  friend bool operator==(const TokenManifest&, const TokenManifest&) = default;
};

// u16 where every id fits, else u32.
constexpr int bytes_per_token(std::int64_t vocab) { return vocab <= 65536 ? 2 : 4; }
std::string shard_name(std::uint64_t number);

std::string to_text(const TokenManifest& manifest);
// Throws DataError that begins with `where`.
TokenManifest parse_token_manifest(std::string_view text, const std::string& where);
TokenManifest read_token_manifest(const std::string& folder);

}  // namespace tessera::data
