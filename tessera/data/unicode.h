#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::data {

// What a character is, as bits. See scripts/make_unicode_tables.py for whose opinion it is.
enum CharacterClass : std::uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kWordCharacter = 8,
  kDigit = 16,         // a number, or one to the pre-tokenizer Digits alone
  kMayCompose = 32,    // a text with none of these is in NFC
  kMayDecompose = 64,  // and with none of these in NFD
};

inline constexpr char32_t kCharacters = 0x110000;

// Tables of all characters, made on first use.
struct Unicode {
  std::vector<std::uint8_t> classes;                                  // bits of CharacterClass
  std::vector<std::uint8_t> ranks;                                    // combining classes
  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> parts;  // second is 0: stands for one
  std::unordered_map<std::uint64_t, char32_t> whole;                  // of first << 32 | second
};
const Unicode& unicode();

// The text in Normalization Form C (`compose`) or D. Valid UTF-8 in, valid UTF-8 out.
std::string normalize(std::string_view text, bool compose);
// Whether a quick look tells that it is already.
bool surely_normal(std::string_view text, bool compose);

}  // namespace tessera::data
