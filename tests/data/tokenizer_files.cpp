#include "tests/data/tokenizer_files.h"

#include <random>

#include "tessera/core/text.h"
#include "tessera/core/utf8.h"

namespace tessera::data {
namespace {

using nlohmann::json;

json empty_file() {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", json::object()},
            {"merges", json::array()}}}};
}

// Merges that build the words letter by letter, and from their ends.
void add_words(json& model, const std::vector<std::string>& words) {
  json& vocab = model["vocab"];
  const auto token = [&](const std::string& text) {
    if (!vocab.contains(text)) vocab[text] = vocab.size();
  };
  const auto merge = [&](const std::string& left, const std::string& right) {
    const json pair = {left, right};
    for (const json& each : model["merges"]) {
      if (each == pair) return;
    }
    token(left), token(right), token(left + right);
    model["merges"].push_back(pair);
  };
  for (const std::string& word : words) {
    std::vector<std::string> letters;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t begin = at;
      utf8_next(word, at);
      letters.push_back(word.substr(begin, at - begin));
      token(letters.back());
    }
    if (letters.size() % 2 == 0) {
      std::string left = letters[0];
      for (std::size_t i = 1; i < letters.size(); ++i) merge(left, letters[i]), left += letters[i];
    } else {
      std::string right = letters.back();
      for (std::size_t i = letters.size() - 1; i-- > 0;) {
        merge(letters[i], right);
        right = letters[i] + right;
      }
    }
  }
}

json added(int id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", !special}, {"special", special}};
}

}  // namespace

json byte_level_file(const std::string& pattern) {
  json file = empty_file();
  json& model = file["model"];
  for (int byte = 0; byte < 256; ++byte) {
    model["vocab"][byte_alphabet().of_byte[static_cast<std::size_t>(byte)]] = byte;
  }
  const auto spelled = [](std::string_view text) {
    std::string out;
    for (const char c : text) out += byte_alphabet().of_byte[static_cast<unsigned char>(c)];
    return out;
  };
  std::vector<std::string> words;
  for (const char* word :
       {"aa", "aaa", "aaaa", "the", " the", " fox", "ing", "ll", "'s",  "  ", "    ",
        "12", "123", "\n\n", "é",   "ö",    "日本", "😀",   "ст", " ст", "he", "in"}) {
    words.push_back(spelled(word));
  }
  add_words(model, words);
  const json own = {{"type", "ByteLevel"},
                    {"add_prefix_space", false},
                    {"trim_offsets", true},
                    {"use_regex", pattern.empty()}};
  file["decoder"] = own;
  file["pre_tokenizer"] = own;
  if (!pattern.empty()) {
    const json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, own}}};
  }
  file["added_tokens"].push_back(
      added(static_cast<int>(model["vocab"].size()), "<|endoftext|>", true));
  return file;
}

json sentence_piece_file() {
  json file = empty_file();
  json& model = file["model"];
  json& vocab = model["vocab"];
  for (const char* token : {"<unk>", "<s>", "</s>"}) {
    file["added_tokens"].push_back(added(static_cast<int>(vocab.size()), token, true));
    vocab[token] = vocab.size();
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string name = str("<0x", hex(byte, 2), ">");
    for (std::size_t i = 3; i < 5; ++i) name[i] = static_cast<char>(std::toupper(name[i]));
    vocab[name] = vocab.size();
  }
  add_words(model, {"aa", "aaa", "aaaa", "the", "▁the", "▁fox", "▁a", "▁▁", "▁▁▁▁", "ing", "日本",
                    "ст", "▁ст", "he", "in", "éö"});
  model["unk_token"] = "<unk>";
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "▁"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return file;
}

std::unique_ptr<Tokenizer> tokenizer_of(const json& file) {
  return make_bpe_tokenizer(parse_tokenizer(file.dump(), "t.json"), "t.json", std::nullopt,
                            std::nullopt);
}

std::vector<TokenId> ids_of(const Tokenizer& tokenizer, std::string_view text,
                            const EncodeOptions& options) {
  std::vector<TokenId> out;
  tokenizer.encode(text, out, options);
  return out;
}

std::string random_text(std::uint64_t seed, int pieces) {
  static const std::vector<std::string> words = {"the",
                                                 "fox",
                                                 "aaaa",
                                                 "aaaaaaa",
                                                 "it's",
                                                 "WE'LL",
                                                 "'S",
                                                 "'ſ",
                                                 "don’t",
                                                 "1234",
                                                 "12",
                                                 "½Ⅷ²",
                                                 "日本",
                                                 "東京",
                                                 "ст",
                                                 "что",
                                                 "é",
                                                 "e\u0301",
                                                 "ﬁ",
                                                 "한국",
                                                 "각",
                                                 "שלום",
                                                 "١٢٣",
                                                 "नमस्ते",
                                                 "😀",
                                                 "👩‍👧",
                                                 "▁",
                                                 "▁▁",
                                                 "_",
                                                 "<s>",
                                                 "<|endoftext|>",
                                                 "!?",
                                                 "...",
                                                 "//",
                                                 "\u212b",
                                                 "\u00a0",
                                                 "\u200d",
                                                 "\u0345\u0301",
                                                 "x"};
  static const std::vector<std::string> spaces = {
      " ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u3000", "\u2028", "\u0085"};
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::string out;
  for (int i = 0; i < pieces; ++i) {
    switch (below(5)) {
      case 0:
      case 1: out += words[below(words.size())]; break;
      case 2: out += spaces[below(spaces.size())]; break;
      case 3: append_utf8(out, static_cast<char32_t>(below(0x80))); break;
      default: append_utf8(out, static_cast<char32_t>(0xa0 + below(0x2ff - 0xa0)));
    }
  }
  return out;
}

}  // namespace tessera::data
