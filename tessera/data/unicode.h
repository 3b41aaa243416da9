#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::data {

// [Note: Unicode tables]
// Token ids must equal those of the Python package `tokenizers`, whose parts follow different
// versions of Unicode: \p{L}, \p{N}, \s and \w version 16, Digits version 17, NFC and NFD
// version 9. No Unicode library gives these answers, because a library has one version. For
// example, utf8proc 2.8.0 (Unicode 15.0) does not classify 4,924 letters and 80 numbers that the
// package does, such as the CJK extension I; has no property that equals \w; and gives 108 marks
// another combining class, which changes the NFC of 7,468 of 557,536 texts in unicode_peer_test.
// The tables are therefore read from the package itself, by scripts/make_unicode_tables.py.

// Classes of a character, as bits. See [Note: Unicode tables].
enum CharacterClass : std::uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kWordCharacter = 8,
  kDigit = 16,         // a superset of kNumber: isolated by the pre-tokenizer Digits
  kMayCompose = 32,    // a text without such characters is in NFC
  kMayDecompose = 64,  // a text without such characters is in NFD
};

inline constexpr char32_t kCharacters = 0x110000;

// Tables of all characters.
struct Unicode {
  std::vector<std::uint8_t> classes;                                  // bits of CharacterClass
  std::vector<std::uint8_t> ranks;                                    // combining classes
  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> parts;  // second is 0: one part
  std::unordered_map<std::uint64_t, char32_t> whole;                  // of first << 32 | second
};
// Returns the tables. The first call builds them.
const Unicode& unicode();

// Returns the text, which must be valid UTF-8, in Normalization Form C (`compose`) or D.
std::string normalize(std::string_view text, bool compose);
// Returns true only if the text is in that form already. May return false for such a text too.
bool surely_normal(std::string_view text, bool compose);

}  // namespace tessera::data
