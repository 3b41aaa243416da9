#include "tessera/data/tokenizer.h"

#include <sys/stat.h>

#include <algorithm>

#include "tessera/core/crypto.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/core/utf8.h"
#include "tessera/data/bpe_tokenizer.h"
#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kMaxTokenizerBytes = std::int64_t{256} << 20;
constexpr std::int64_t kMaxConfigBytes = std::int64_t{16} << 20;
constexpr TokenId kByteEnd = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  std::int64_t vocab() const override { return kByteEnd + 1; }
  std::string fingerprint() const override { return to_hex(sha256("tessera bytes 1")); }
  void encode(std::string_view text, std::vector<TokenId>& out,
              const EncodeOptions&) const override {
    const std::size_t before = out.size();
    out.resize(before + text.size());
    std::transform(text.begin(), text.end(), out.begin() + static_cast<std::ptrdiff_t>(before),
                   [](char c) { return TokenId{static_cast<unsigned char>(c)}; });
  }
  std::string decode(std::span<const TokenId> ids, bool) const override {
    std::string out;
    out.reserve(ids.size());
    for (const TokenId id : ids) {
      if (id > kByteEnd) {
        throw DataError(
            str("token ", id, " does not exist in the byte tokenizer, whose vocabulary is 257"));
      }
      if (id != kByteEnd) out.push_back(static_cast<char>(id));
    }
    return out;
  }
  std::optional<TokenId> find(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token[0]);
  }
  bool is_special(TokenId id) const override { return id == kByteEnd; }
  std::optional<TokenId> end_of_text() const override { return kByteEnd; }
  std::optional<TokenId> begin_of_text() const override { return std::nullopt; }
};

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

// Returns the tokens that begin and end a text: named in one of the files, otherwise by id.
NumberedTokens end_tokens(const std::string& folder, const TokenizerSpec& spec) {
  NumberedTokens out;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string path = folder + name;
    if (!file_exists(path)) continue;
    const NamedTokens named = parse_named_tokens(read_small_file(path, kMaxConfigBytes), path);
    const auto number = [&](const std::string& token, std::optional<TokenId>& id) {
      if (token.empty() || id) return;
      id = find_token(spec, token);
      if (!id) {
        throw DataError(
            str(path, " names the token ", quote(token),
                ", which the tokenizer.json next to it does not have. It may be from another "
                "model."));
      }
    };
    number(named.begin, out.begin);
    number(named.end, out.end);
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = folder + name;
    if ((out.begin && out.end) || !file_exists(path)) continue;
    const NumberedTokens numbered =
        parse_numbered_tokens(read_small_file(path, kMaxConfigBytes), path);
    if (!out.begin) out.begin = numbered.begin;
    if (!out.end) out.end = numbered.end;
  }
  return out;
}

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& where) {
  if (where == "bytes") return byte_tokenizer();
  const std::string path = is_folder(where) ? where + "/tokenizer.json" : where;
  const std::string text = read_small_file(
      path, kMaxTokenizerBytes,
      "\"bytes\", a tokenizer.json of the tokenizers package, or a folder that has one");
  TokenizerSpec spec = parse_tokenizer(text, path);
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const NumberedTokens ends = end_tokens(folder, spec);
  return make_bpe_tokenizer(std::move(spec), path, ends.end, ends.begin);
}

CleanText clean_utf8(std::string_view text, BadUtf8 policy, std::string& storage) {
  std::size_t good = utf8_valid_until(text);
  if (good == text.size()) return {text, 0};
  if (policy == BadUtf8::refuse) {
    throw DataError(
        str("the text is not UTF-8: byte ", hex(static_cast<unsigned char>(text[good]), 2),
            " at offset ", good,
            " does not start a character. Convert the file to UTF-8, or have such bytes "
            "replaced"));
  }
  CleanText clean;
  storage.clear();
  std::size_t at = 0;
  while (true) {
    storage.append(text, at, good - at);
    if (good == text.size()) break;
    storage += "\xef\xbf\xbd";
    ++clean.replaced;
    at = good + utf8_sequence(text, good).size;
    good = utf8_valid_until(text, at);
  }
  clean.text = storage;
  return clean;
}

}  // namespace tessera::data
