// Compares with the Python package `tokenizers`: equal ids and equal texts.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "tessera/core/text.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_pattern.h"
#include "tests/interop.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

// Output of tokenizer_peer.py.
class Cases {
 public:
  explicit Cases(std::string bytes) : bytes_(std::move(bytes)) {}
  bool more() const { return at_ < bytes_.size(); }
  std::string text() {
    const std::size_t size = number();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  std::vector<TokenId> ids() {
    std::vector<TokenId> out(number());
    for (TokenId& id : out) id = number();
    return out;
  }

 private:
  std::uint32_t number() {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string bytes_;
  std::size_t at_ = 0;
};

std::string shown(const std::vector<TokenId>& ids) {
  std::string out;
  for (std::size_t i = 0; i < ids.size() && i < 40; ++i) out += str(i == 0 ? "" : " ", ids[i]);
  return out;
}

std::vector<TokenId> encoded(const Tokenizer& tokenizer, const std::string& text,
                             const EncodeOptions& options = {}) {
  std::vector<TokenId> out;
  tokenizer.encode(text, out, options);
  return out;
}

// The package returns text only: invalid UTF-8 is replaced.
std::string as_text(const std::string& bytes) {
  std::string storage;
  return std::string(clean_utf8(bytes, BadUtf8::replace, storage).text);
}

// Cut at each space between two letters: the parts give the ids of the whole text.
std::int64_t compare_parts(const Tokenizer& tokenizer, const std::string& text,
                           const std::vector<TokenId>& whole) {
  std::int64_t cuts = 0;
  const auto ink = [](char c) { return c > ' ' && c < 0x7f; };
  for (std::size_t at = text.find(' ', 1); at < text.size() - 1; at = text.find(' ', at + 1)) {
    if (!ink(text[at - 1]) || !ink(text[at + 1])) continue;
    std::vector<TokenId> got = encoded(tokenizer, text.substr(0, at), {.special = false});
    tokenizer.encode(text.substr(at), got,
                     {.special = false, .behind = EncodeOptions::Behind::text});
    EXPECT_EQ(shown(got), shown(whole)) << quote(text) << " cut at " << at;
    EXPECT_TRUE(got == whole);
    if (++cuts == 8) break;
  }
  return cuts;
}

void compare(const fs::path& folder, std::int64_t& strings, std::int64_t& cuts) {
  SCOPED_TRACE(folder.filename());
  const auto tokenizer = load_tokenizer(folder.string());
  Cases cases(read_all((folder / "cases").string()));
  const bool bytes = tokenizer->find("<0x0A>").has_value();
  int failures = 0;
  while (cases.more() && failures < 5) {
    const std::string text = cases.text();
    const std::vector<TokenId> ids = cases.ids(), plain = cases.ids(), around = cases.ids();
    const std::string decoded = cases.text(), skipped = cases.text();
    const std::vector<TokenId> drawn = cases.ids();
    const std::string from_drawn = cases.text();
    const auto same = [&](const std::vector<TokenId>& got, const std::vector<TokenId>& wanted,
                          const char* what) {
      if (got == wanted) return;
      ++failures;
      ADD_FAILURE() << what << " of " << quote(text) << "\n got    " << shown(got) << "\n expected "
                    << shown(wanted);
    };
    same(encoded(*tokenizer, text), ids, "ids");
    same(encoded(*tokenizer, text, {.special = false}), plain, "ids without special tokens");
    same(encoded(*tokenizer, text, {.around = true}), around, "ids with those around");
    EXPECT_EQ(as_text(tokenizer->decode(ids)), decoded) << quote(text);
    EXPECT_EQ(as_text(tokenizer->decode(ids, true)), skipped) << quote(text);
    // The package returns only U+FFFD for single-byte tokens that form no character; here their
    // bytes are returned.
    if (!bytes || !contains(from_drawn, "\xef\xbf\xbd")) {
      EXPECT_EQ(as_text(tokenizer->decode(drawn)), from_drawn) << shown(drawn);
    }
    if (tokenizer->may_cut_at_space() && text.size() > 2) {
      cuts += compare_parts(*tokenizer, text, plain);
    }
    ++strings;
  }
}

TEST(TokenizerPeer, MatchesTheTokenizersPackage) {
  TESSERA_NEEDS_INTEROP();
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2";
  const TemporaryFolder folder;
  const std::string command = str(TESSERA_INTEROP_PYTHON " -B " TESSERA_TOKENIZER_PEER " ",
                                  folder / "made", " ", TESSERA_TOKENIZER_STRINGS);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::int64_t strings = 0, cuts = 0;
  for (const auto& entry : fs::directory_iterator(folder / "made")) {
    compare(entry.path(), strings, cuts);
  }
  std::cout << strings << " strings, " << cuts << " of them in parts\n";
  EXPECT_GE(strings, 10'000);
  EXPECT_GE(cuts, 200);
}

}  // namespace
}  // namespace tessera::data
