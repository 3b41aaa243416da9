#include "tessera/data/unicode.h"

#include <algorithm>
#include <span>

#include "tessera/core/utf8.h"
#include "tessera/data/unicode_tables.h"

namespace tessera::data {
namespace {

// Hangul syllables are made by counting: Unicode Standard, section 3.12.
constexpr char32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11a7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

void mark_runs(std::span<const std::int32_t> runs, std::uint8_t bits,
               std::vector<std::uint8_t>& table) {
  std::size_t at = 0;
  for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {
    at += static_cast<std::size_t>(runs[i]);
    for (std::int32_t left = runs[i + 1]; left > 0; --left) table[at++] |= bits;
  }
}

Unicode make_unicode() {
  namespace tables = unicode_tables;
  Unicode out;
  out.classes.assign(kCharacters, 0);
  out.ranks.assign(kCharacters, 0);
  mark_runs(tables::kLetters, kLetter, out.classes);
  mark_runs(tables::kNumbers, kNumber | kDigit, out.classes);
  mark_runs(tables::kMoreDigits, kDigit, out.classes);
  mark_runs(tables::kSpaces, kSpace, out.classes);
  mark_runs(tables::kWords, kWordCharacter, out.classes);
  char32_t c = 0;
  const std::span<const std::int32_t> pairs = tables::kPairs, singles = tables::kSingles;
  for (std::size_t i = 0; i + 2 < pairs.size(); i += 3) {
    c += static_cast<char32_t>(pairs[i]);
    const auto first = static_cast<char32_t>(pairs[i + 1]);
    const bool composes = pairs[i + 2] > 0;
    const auto second = static_cast<char32_t>(composes ? pairs[i + 2] : -pairs[i + 2]);
    out.parts[c] = {first, second};
    out.classes[c] |= kMayDecompose;
    if (composes) {
      out.whole[std::uint64_t{first} << 32 | second] = c;
      out.classes[second] |= kMayCompose;
    } else {
      out.classes[c] |= kMayCompose;
    }
  }
  c = 0;
  for (std::size_t i = 0; i + 1 < singles.size(); i += 2) {
    c += static_cast<char32_t>(singles[i]);
    out.parts[c] = {static_cast<char32_t>(singles[i + 1]), 0};
    out.classes[c] |= kMayDecompose | kMayCompose;
  }
  const std::span<const std::int32_t> ranks = tables::kRanks;
  for (std::size_t i = 0; i < ranks.size();) {
    const auto rank = static_cast<std::uint8_t>(ranks[i]);
    const std::size_t size = 2 * static_cast<std::size_t>(ranks[i + 1]);
    mark_runs(ranks.subspan(i + 2, size), rank, out.ranks);
    mark_runs(ranks.subspan(i + 2, size), kMayDecompose | kMayCompose, out.classes);
    i += 2 + size;
  }
  for (char32_t i = 0; i < kSyllableCount; ++i) out.classes[kSyllables + i] |= kMayDecompose;
  for (char32_t i = 0; i < kVowelCount; ++i) out.classes[kVowels + i] |= kMayCompose;
  for (char32_t i = 1; i < kTailCount; ++i) out.classes[kTails + i] |= kMayCompose;
  return out;
}

void decompose(const Unicode& tables, char32_t c, std::u32string& out) {
  if (c - kSyllables < kSyllableCount) {
    const char32_t number = c - kSyllables;
    out.push_back(kLeads + number / (kVowelCount * kTailCount));
    out.push_back(kVowels + number / kTailCount % kVowelCount);
    if (number % kTailCount != 0) out.push_back(kTails + number % kTailCount);
    return;
  }
  const auto found =
      (tables.classes[c] & kMayDecompose) != 0 ? tables.parts.find(c) : tables.parts.end();
  if (found == tables.parts.end()) {
    out.push_back(c);
    return;
  }
  decompose(tables, found->second.first, out);
  if (found->second.second != 0) decompose(tables, found->second.second, out);
}

// Returns the composition of two characters, or 0.
char32_t composed(const Unicode& tables, char32_t first, char32_t second) {
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 &&
      second - kTails - 1 < kTailCount - 1) {
    return first + (second - kTails);
  }
  const auto found = tables.whole.find(std::uint64_t{first} << 32 | second);
  return found == tables.whole.end() ? 0 : found->second;
}

void compose_all(const Unicode& tables, std::u32string& text) {
  std::size_t starter = text.size(), out = 0;  // the last character of rank 0 that was kept
  int last = -1;                               // the rank of what was kept last behind it
  for (const char32_t c : text) {
    const int rank = tables.ranks[c];
    if (starter < out && last < rank) {
      if (const char32_t whole = composed(tables, text[starter], c)) {
        text[starter] = whole;
        continue;
      }
    }
    if (rank == 0) {
      starter = out;
      last = -1;
    } else {
      last = rank;
    }
    text[out++] = c;
  }
  text.resize(out);
}

}  // namespace

const Unicode& unicode() {
  static const Unicode tables = make_unicode();
  return tables;
}

bool surely_normal(std::string_view text, bool compose) {
  const std::vector<std::uint8_t>& classes = unicode().classes;
  const std::uint8_t bit = compose ? kMayCompose : kMayDecompose;
  // Characters that begin with a smaller byte are below U+0300 (or U+00C0).
  const unsigned char least = compose ? 0xcc : 0xc3;
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < least) {
      at += utf8_length(text[at]);
    } else if ((classes[utf8_next(text, at)] & bit) != 0) {
      return false;
    }
  }
  return true;
}

std::string normalize(std::string_view text, bool compose) {
  if (surely_normal(text, compose)) return std::string(text);
  const Unicode& tables = unicode();
  std::u32string all;
  all.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) decompose(tables, utf8_next(text, at), all);
  // Marks in the order of their ranks, those of one rank as they came.
  for (std::size_t i = 0; i < all.size();) {
    if (tables.ranks[all[i]] == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < all.size() && tables.ranks[all[end]] != 0) ++end;
    std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(i),
                     all.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](char32_t a, char32_t b) { return tables.ranks[a] < tables.ranks[b]; });
    i = end;
  }
  if (compose) compose_all(tables, all);
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : all) append_utf8(out, c);
  return out;
}

}  // namespace tessera::data
