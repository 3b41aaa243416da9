#include "tessera/data/token_manifest.h"

#include <nlohmann/json.hpp>
#include <set>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/file_system.h"
#include "tessera/core/errors.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

using TokenJson = nlohmann::json;

// The first line holds the checksum of everything after it.
constexpr std::string_view kCrcBefore = "{\"crc32c\": \"", kCrcAfter = "\",\n";
constexpr std::size_t kCrcDigits = 8;
constexpr std::string_view kTokensFormat = "tessera-tokens";
constexpr std::uint64_t kTokensVersion = 1;

// Members of a JSON object, with errors that name them.
class TokenFields {
 public:
  TokenFields(const TokenJson& value, std::string where) : value_(value), where_(std::move(where)) {
    if (!value.is_object()) throw DataError(str(where_, " is not a JSON object"));
  }
  const TokenJson& get(const char* name) const {
    const auto found = value_.find(name);
    if (found == value_.end()) throw DataError(str(where_, " has no \"", name, "\""));
    return *found;
  }
  std::uint64_t count(const char* name, std::uint64_t most) const {
    const TokenJson& value = get(name);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
      throw DataError(str(where_, ": \"", name, "\" is ", shown(value),
                          ", must be a whole number from 0 to ", most));
    }
    return value.get<std::uint64_t>();
  }
  std::string text(const char* name) const {
    const TokenJson& value = get(name);
    if (!value.is_string()) {
      throw DataError(str(where_, ": \"", name, "\" is ", shown(value), ", must be a string"));
    }
    return value.get<std::string>();
  }
  std::uint32_t checksum(const char* name) const {
    std::vector<std::uint32_t> crc;
    const std::string digits = text(name);
    if (!checkpoint::from_hex(digits, crc) || crc.size() != 1) {
      throw DataError(str(where_, ": \"", name, "\" is ", quote(digits),
                          ", must be a checksum of 8 hexadecimal digits"));
    }
    return crc[0];
  }
  const std::string& where() const { return where_; }

 private:
  static std::string shown(const TokenJson& value) {
    return quote(value.dump(-1, ' ', true, TokenJson::error_handler_t::replace));
  }
  const TokenJson& value_;
  std::string where_;
};

// Returns true for a file name that cannot lead out of the folder.
bool is_plain_name(const std::string& name) {
  if (name.empty() || name.size() > 200 || name[0] == '.') return false;
  for (const char c : name) {
    const bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '-' || c == '_' || c == '.';
    if (!good) return false;
  }
  return true;
}

TokenShard parse_shard(const TokenFields& fields, bool masked) {
  TokenShard shard;
  const std::string file = fields.text("file");
  if (!file.ends_with(".bin") || !is_plain_name(file) || file == ".bin") {
    throw DataError(str(fields.where(), ": \"file\" is ", quote(file),
                        ", must be the name of a .bin in the folder itself"));
  }
  shard.name = file.substr(0, file.size() - 4);
  shard.tokens = fields.count("tokens", kMaxTokens);
  shard.documents = fields.count("documents", shard.tokens);
  if (shard.tokens == 0) throw DataError(str(fields.where(), " has no tokens"));
  shard.bin_crc = fields.checksum("bin");
  shard.idx_crc = fields.checksum("idx");
  if (masked) shard.mask_crc = fields.checksum("mask");
  return shard;
}

}  // namespace

std::uint64_t TokenManifest::tokens() const {
  std::uint64_t sum = 0;
  for (const TokenShard& shard : shards) sum += shard.tokens;
  return sum;
}

std::uint64_t TokenManifest::documents() const {
  std::uint64_t sum = 0;
  for (const TokenShard& shard : shards) sum += shard.documents;
  return sum;
}

std::string shard_name(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  return str("tokens-", std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0'), digits);
}

std::string to_text(const TokenManifest& manifest) {
  using Ordered = nlohmann::ordered_json;
  Ordered tokenizer = {{"name", manifest.tokenizer},
                       {"fingerprint", manifest.fingerprint},
                       {"vocab", manifest.vocab}};
  if (manifest.end_of_text) tokenizer["end_of_text"] = *manifest.end_of_text;
  Ordered shards = Ordered::array();
  for (const TokenShard& shard : manifest.shards) {
    Ordered one = {{"file", shard.name + ".bin"},
                   {"tokens", shard.tokens},
                   {"documents", shard.documents},
                   {"bin", checkpoint::to_hex({shard.bin_crc})},
                   {"idx", checkpoint::to_hex({shard.idx_crc})}};
    if (manifest.masked) one["mask"] = checkpoint::to_hex({shard.mask_crc});
    shards.push_back(std::move(one));
  }
  const Ordered all = {{"format", kTokensFormat},
                       {"version", kTokensVersion},
                       {"tokenizer", tokenizer},
                       {"bytes_per_token", manifest.bytes_per_token},
                       {"masked", manifest.masked},
                       {"tokens", manifest.tokens()},
                       {"documents", manifest.documents()},
                       {"bytes_of_text", manifest.bytes_of_text},
                       {"reading", manifest.reading},
                       {"shards", shards}};
  const std::string body =
      all.dump(1, ' ', false, Ordered::error_handler_t::replace).substr(2) + "\n";  // without "{\n"
  return str(kCrcBefore, checkpoint::to_hex({checkpoint::crc32c(body)}), kCrcAfter, body);
}

TokenManifest parse_token_manifest(std::string_view text, const std::string& where) {
  const std::size_t begin = kCrcBefore.size() + kCrcDigits + kCrcAfter.size();
  std::vector<std::uint32_t> crc;
  if (text.size() < begin || !text.starts_with(kCrcBefore) ||
      text.substr(kCrcBefore.size() + kCrcDigits, kCrcAfter.size()) != kCrcAfter ||
      !checkpoint::from_hex(text.substr(kCrcBefore.size(), kCrcDigits), crc)) {
    throw DataError(str(where, " starts with ", quote(text.substr(0, 40)),
                        ", must start with the checksum that `tessera data prepare` writes"));
  }
  if (const std::uint32_t got = checkpoint::crc32c(text.substr(begin)); got != crc[0]) {
    throw DataError(str(where, " has the checksum ", checkpoint::to_hex({got}), ", expected ",
                        checkpoint::to_hex(crc),
                        ": it was changed or truncated. Copy it again, or prepare it again."));
  }
  const TokenJson json = parse_strictly(text, 16, where);
  const TokenFields top(json, where);
  if (const std::string format = top.text("format"); format != kTokensFormat) {
    throw DataError(str(where, ": \"format\" is ", quote(format), ", must be ", kTokensFormat));
  }
  if (const std::uint64_t version = top.count("version", UINT32_MAX); version != kTokensVersion) {
    throw DataError(str(where, ": \"version\" is ", version, ", must be ", kTokensVersion,
                        ": it was written by a newer Tessera"));
  }
  TokenManifest manifest;
  const TokenFields tokenizer(top.get("tokenizer"), where + ": \"tokenizer\"");
  manifest.tokenizer = tokenizer.text("name");
  manifest.fingerprint = tokenizer.text("fingerprint");
  manifest.vocab = static_cast<std::int64_t>(tokenizer.count("vocab", std::uint64_t{1} << 32));
  if (manifest.vocab == 0) throw DataError(str(tokenizer.where(), ": \"vocab\" is 0"));
  if (json.at("tokenizer").contains("end_of_text")) {
    manifest.end_of_text = static_cast<std::uint32_t>(
        tokenizer.count("end_of_text", static_cast<std::uint64_t>(manifest.vocab) - 1));
  }
  manifest.bytes_per_token = static_cast<int>(top.count("bytes_per_token", 4));
  if (manifest.bytes_per_token != bytes_per_token(manifest.vocab)) {
    throw DataError(str(where, ": \"bytes_per_token\" is ", manifest.bytes_per_token, ", must be ",
                        bytes_per_token(manifest.vocab), " for a vocabulary of ", manifest.vocab));
  }
  const TokenJson& masked = top.get("masked");
  if (!masked.is_boolean()) throw DataError(str(where, ": \"masked\" is neither true nor false"));
  manifest.masked = masked.get<bool>();
  manifest.bytes_of_text = top.count("bytes_of_text", std::uint64_t{1} << 60);
  const TokenJson& reading = top.get("reading");
  if (!reading.is_object()) throw DataError(str(where, ": \"reading\" is not a JSON object"));
  for (const auto& [key, value] : reading.items()) {
    if (!value.is_string()) {
      throw DataError(str(where, ": \"reading\": ", quote(key), " is not a string"));
    }
    manifest.reading[key] = value.get<std::string>();
  }
  const TokenJson& shards = top.get("shards");
  if (!shards.is_array()) throw DataError(str(where, ": \"shards\" is not a list"));
  std::set<std::string> names;
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    TokenShard shard =
        parse_shard(TokenFields(shards[i], str(where, ": shard ", i)), manifest.masked);
    if (!names.insert(shard.name).second) {
      throw DataError(str(where, " names ", quote(shard.name + ".bin"), " twice"));
    }
    tokens += shard.tokens;  // both are at most kMaxTokens
    if (tokens > kMaxTokens) throw DataError(str(where, " has more than ", kMaxTokens, " tokens"));
    manifest.shards.push_back(std::move(shard));
  }
  const std::uint64_t declared = top.count("tokens", kMaxTokens);
  const std::uint64_t declared_documents = top.count("documents", kMaxTokens);
  if (declared != tokens || declared_documents != manifest.documents()) {
    throw DataError(str(where, " declares ", declared, " tokens in ", declared_documents,
                        " documents, but its shards have ", tokens, " in ", manifest.documents()));
  }
  if (tokens == 0 || declared_documents == 0) throw DataError(str(where, " has no documents"));
  return manifest;
}

TokenManifest read_token_manifest(const std::string& folder) {
  const std::string path = str(folder, "/", kTokensName);
  const auto files = checkpoint::local_files();
  return parse_token_manifest(checkpoint::read_text(*files, path, kMaxTokensJson), path);
}

}  // namespace tessera::data
