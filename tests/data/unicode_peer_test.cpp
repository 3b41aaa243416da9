// Compares character classes and normalization of every code point with the Python package
// `tokenizers`.

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tessera/core/text.h"
#include "tessera/data/unicode.h"
#include "tests/interop.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

// Returns the next line and advances `rest` past it.
std::string_view next_line(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(line.size() + 1);
  return line;
}

void compare_forms(const std::string& folder, bool compose, std::int64_t& texts) {
  const std::string given = read_all(folder + "/texts");
  const std::string wanted = read_all(folder + (compose ? "/nfc" : "/nfd"));
  std::string_view inputs = given, outputs = wanted;
  int failures = 0;
  while (!inputs.empty() && failures < 20) {
    ASSERT_FALSE(outputs.empty());
    const std::string_view text = next_line(inputs), expected = next_line(outputs);
    const std::string got = normalize(text, compose);
    ++texts;
    if (got == expected && (got == text || !surely_normal(text, compose))) continue;
    ++failures;
    ADD_FAILURE() << (compose ? "NFC" : "NFD") << " of " << quote(text) << "\n got    "
                  << quote(got) << "\n expected " << quote(expected);
  }
  EXPECT_TRUE(outputs.empty() || failures > 0);
}

TEST(UnicodePeer, ClassifiesAndNormalizesEveryCodePointLikeTheTokenizersPackage) {
  TESSERA_NEEDS_INTEROP();
  const TemporaryFolder folder;
  const std::string command = str(TESSERA_INTEROP_PYTHON " -B " TESSERA_UNICODE_PEER " ",
                                  folder / "made", " " TESSERA_CODE_POINTS);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;

  constexpr unsigned kCompared = kLetter | kNumber | kSpace | kWordCharacter | kDigit;
  constexpr unsigned kLeftOut = 255;
  const std::string classes = read_all(folder / "made/classes");
  ASSERT_EQ(classes.size(), std::size_t{kCharacters});
  std::int64_t code_points = 0, texts = 0;
  int failures = 0;
  for (char32_t c = 0; c < kCharacters && failures < 20; ++c) {
    const auto wanted = static_cast<unsigned char>(classes[c]);
    if (wanted == kLeftOut) continue;
    const unsigned got = unicode().classes[c] & kCompared;
    ++code_points;
    if (got == wanted) continue;
    ++failures;
    ADD_FAILURE() << "U+" << hex(c, 4) << " has classes " << got << ", in the package "
                  << unsigned{wanted};
  }
  compare_forms(folder / "made", true, texts);
  compare_forms(folder / "made", false, texts);
  std::cout << code_points << " code points, " << texts << " normalized texts\n";
  EXPECT_GE(code_points, 260'000);
  EXPECT_GE(texts, 1'000'000);
}

}  // namespace
}  // namespace tessera::data
