#include "tessera/cli/model_tokenizer.h"

#include <algorithm>
#include <sstream>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/data/token_data.h"

namespace tessera::cli {
namespace {

// Base of tokenizers without special tokens. Subclasses define encode() and decode().
class PlainTokenizer : public data::Tokenizer {
 public:
  explicit PlainTokenizer(std::int64_t vocab) : vocab_(vocab) {}
  std::int64_t vocab() const override { return vocab_; }
  std::string fingerprint() const override { return ""; }
  bool is_special(data::TokenId) const override { return false; }
  std::optional<data::TokenId> find(std::string_view) const override { return std::nullopt; }
  std::optional<data::TokenId> end_of_text() const override { return std::nullopt; }
  std::optional<data::TokenId> begin_of_text() const override { return std::nullopt; }

 private:
  const std::int64_t vocab_;
};

// Token ids separated by spaces: "12 7 3".
class Numbers final : public PlainTokenizer {
 public:
  using PlainTokenizer::PlainTokenizer;
  std::string name() const override { return "ids"; }
  void encode(std::string_view text, std::vector<data::TokenId>& out,
              const data::EncodeOptions&) const override {
    std::istringstream words{std::string(text)};
    for (std::string word; words >> word;) {
      const bool digits =
          std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
      const std::int64_t id = digits && word.size() < 10 ? std::stoll(word) : -1;
      if (id < 0 || id >= vocab()) {
        throw UsageError(str("a prompt has ", quote(word), "; must be token ids from 0 to ",
                             vocab() - 1, ", separated by spaces"));
      }
      out.push_back(static_cast<data::TokenId>(id));
    }
  }
  std::string decode(std::span<const data::TokenId> ids, bool) const override {
    std::string text;
    for (const data::TokenId id : ids) text += str(" ", id);
    return text;
  }
};

// The symbols of [Note: sorting].
class Digits final : public PlainTokenizer {
 public:
  using PlainTokenizer::PlainTokenizer;
  std::string name() const override { return "digits"; }
  void encode(std::string_view text, std::vector<data::TokenId>& out,
              const data::EncodeOptions&) const override {
    for (const char c : text) {
      const std::size_t id = kSymbols.find(c);
      if (id == std::string_view::npos) {
        if (c == '\n' || c == ' ') continue;
        throw UsageError(str("a prompt has ", quote(std::string(1, c)),
                             "; a model trained on synthetic data accepts digits, | and ., such as "
                             "3141592|"));
      }
      out.push_back(static_cast<data::TokenId>(id));
    }
  }
  std::string decode(std::span<const data::TokenId> ids, bool) const override {
    std::string text;
    for (const data::TokenId id : ids) text += id < kSymbols.size() ? kSymbols[id] : '?';
    return text;
  }

 private:
  static constexpr std::string_view kSymbols = "0123456789|.";
};

}  // namespace

std::unique_ptr<data::Tokenizer> tokenizer_for(const std::string& name,
                                               const train::ModelFiles& model) {
  const std::int64_t vocab = model.shape().vocab;
  const auto fits = [&](std::unique_ptr<data::Tokenizer> tokenizer) {
    if (tokenizer->vocab() > vocab && tokenizer->name() != "bytes") {
      throw UsageError(str("the tokenizer ", quote(tokenizer->name()), " has ", tokenizer->vocab(),
                           " tokens, but the model of ", model.folder(), " has ", vocab,
                           "; use the tokenizer that it was trained with (--tokenizer)"));
    }
    return tokenizer;
  };
  if (name == "ids") return std::make_unique<Numbers>(vocab);
  if (!name.empty()) return fits(data::load_tokenizer(name));
  const std::string& folder = model.tokenizer_folder();
  const bool own = !folder.empty() && kind_of_file(folder + "/tokenizer.json") == "a regular file";
  if (model.huggingface()) {
    if (own) return fits(data::load_tokenizer(folder));
    throw UsageError(Flag("tokenizer"),
                     str(model.folder(),
                         " has no tokenizer.json; must be one, a folder with one, bytes (for a "
                         "model trained on bytes) or ids"));
  }
  const std::string& data = model.data();
  if (data == "synthetic") return std::make_unique<Digits>(vocab);
  if (data::is_token_data(data)) {
    if (auto made = data::tokenizer_of(*data::open_tokens(data))) return fits(std::move(made));
  } else if (kind_of_file(data) == "a regular file") {
    return data::byte_tokenizer();
  }
  // The data was moved. The run may have a copy of the tokenizer, or the fingerprint of bytes.
  if (model.tokenizer() == data::byte_tokenizer()->fingerprint()) return data::byte_tokenizer();
  if (own) {
    auto kept = data::load_tokenizer(folder);
    if (kept->fingerprint() == model.tokenizer()) return fits(std::move(kept));
  }
  throw UsageError(Flag("tokenizer"),
                   str("the training data of ", model.folder(), ", ", data,
                       ", is missing or does not name its tokenizer; must be a tokenizer.json, a "
                       "folder with one, bytes or ids"));
}

}  // namespace tessera::cli
