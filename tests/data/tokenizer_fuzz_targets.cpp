#include "tests/data/tokenizer_fuzz_targets.h"

#include "tessera/core/errors.h"
#include "tessera/core/utf8.h"
#include "tests/data/tokenizer_files.h"
#include "tests/fuzz.h"

namespace tessera::data {

void fuzz_tokenizer(std::string_view input) {
  try {
    const auto tokenizer = make_bpe_tokenizer(parse_tokenizer(input, "t"), "t", std::nullopt, 0);
    must(tokenizer->vocab() > 0 && tokenizer->fingerprint().size() == 64, "a vocabulary", input);
    for (const char* text :
         {"", " ", "a the <s> ab", "\xc3\xa9\n\n 12 \xe2\x96\x81x", "<|x|>  tok"}) {
      for (const bool option : {false, true}) {
        std::vector<TokenId> ids;
        tokenizer->encode(text, ids, {.special = option, .around = !option});
        for (const TokenId id : ids) must(id < tokenizer->vocab(), "an id", input);
        tokenizer->decode(ids, option);
      }
    }
  } catch (const DataError&) {
  }
  try {
    parse_named_tokens(input, "t");
  } catch (const DataError&) {
  }
  try {
    parse_numbered_tokens(input, "t");
  } catch (const DataError&) {
  }
}

void fuzz_encode(std::string_view input) {
  struct Known {
    std::unique_ptr<Tokenizer> quick, plain;  // the second always uses PCRE2
  };
  static const std::vector<Known> known = [] {
    std::vector<Known> out;
    for (const std::string pattern : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
      // The same pattern, written so that it is not recognized.
      const std::string other = "(?:" + pattern + ")";
      out.push_back({tokenizer_of(byte_level_file(pattern)),
                     have_pcre2() ? tokenizer_of(byte_level_file(other)) : nullptr});
    }
    return out;
  }();
  static const auto pieces = tokenizer_of(sentence_piece_file());
  std::string storage;
  const std::string text(clean_utf8(input, BadUtf8::replace, storage).text);
  must(utf8_valid_until(text) == text.size(), "clean text", input);
  bool old = true;  // of characters that all versions of Unicode treat alike
  for (std::size_t at = 0; at < text.size();) old &= utf8_next(text, at) < 0x300;
  for (const Known& each : known) {
    const std::vector<TokenId> ids = ids_of(*each.quick, text);
    must(each.quick->decode(ids) == text, "the way back", input);
    if (old && each.plain != nullptr) {
      must(ids_of(*each.plain, text) == ids, "the same by PCRE2", input);
    }
  }
  const std::string back = pieces->decode(ids_of(*pieces, text));
  if (text.find("\xe2\x96\x81") == std::string::npos && text.find('<') == std::string::npos) {
    must(back == text, "the way back through pieces", input);
  }
}

}  // namespace tessera::data
