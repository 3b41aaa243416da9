#include "tessera/core/utf8.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tessera {
namespace {

// [Note: checking UTF-8] State machine with nine states. The transitions of one byte are a 64-bit
// number with six bits per state: a state is the bit offset of its entry, which holds the offset of
// the next state. A byte thus costs a load, which is independent of the previous byte, and a shift,
// which is not.
enum Utf8State : unsigned {
  kUtf8Wrong = 0,     // invalid; no transition leaves it
  kUtf8Whole = 6,     // between two characters
  kUtf8One = 12,      // one more byte of a character follows
  kUtf8Two = 18,      // two more bytes
  kUtf8Three = 24,    // three more bytes
  kUtf8AfterE0 = 30,  // the next byte must not be small: overlong form
  kUtf8AfterEd = 36,  // must not be large: surrogate
  kUtf8AfterF0 = 42,  // must not be small: overlong form
  kUtf8AfterF4 = 48,  // must not be large: above U+10FFFF
};
constexpr std::size_t kUtf8Block = 64;

constexpr std::array<std::uint64_t, 256> utf8_steps() {
  std::array<std::uint64_t, 256> steps{};
  const auto put = [&](unsigned low, unsigned high, Utf8State from, Utf8State to) {
    for (unsigned byte = low; byte <= high; ++byte) steps[byte] |= std::uint64_t{to} << from;
  };
  put(0x00, 0x7f, kUtf8Whole, kUtf8Whole);
  put(0xc2, 0xdf, kUtf8Whole, kUtf8One);
  put(0xe0, 0xe0, kUtf8Whole, kUtf8AfterE0);
  put(0xe1, 0xec, kUtf8Whole, kUtf8Two);
  put(0xed, 0xed, kUtf8Whole, kUtf8AfterEd);
  put(0xee, 0xef, kUtf8Whole, kUtf8Two);
  put(0xf0, 0xf0, kUtf8Whole, kUtf8AfterF0);
  put(0xf1, 0xf3, kUtf8Whole, kUtf8Three);
  put(0xf4, 0xf4, kUtf8Whole, kUtf8AfterF4);
  put(0x80, 0xbf, kUtf8One, kUtf8Whole);
  put(0x80, 0xbf, kUtf8Two, kUtf8One);
  put(0x80, 0xbf, kUtf8Three, kUtf8Two);
  put(0xa0, 0xbf, kUtf8AfterE0, kUtf8One);
  put(0x80, 0x9f, kUtf8AfterEd, kUtf8One);
  put(0x90, 0xbf, kUtf8AfterF0, kUtf8Two);
  put(0x80, 0x8f, kUtf8AfterF4, kUtf8Two);
  return steps;
}
constexpr std::array<std::uint64_t, 256> kUtf8Steps = utf8_steps();

// In words without branches, so that the compiler vectorizes it.
bool is_ascii(const unsigned char* bytes, std::size_t count) {
  std::uint64_t any = 0;
  if (count == kUtf8Block) {
    for (std::size_t i = 0; i < kUtf8Block; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes + i, 8);
      any |= word;
    }
    return (any & 0x8080808080808080U) == 0;
  }
  for (std::size_t i = 0; i < count; ++i) any |= bytes[i];
  return any < 0x80;
}

}  // namespace

Utf8Sequence utf8_sequence(std::string_view text, std::size_t at) {
  using Kind = Utf8Sequence::Kind;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {Kind::valid, 1};
  if (first < 0xc2 || first > 0xf4) return {Kind::invalid, 1};
  const std::size_t size = utf8_length(text[at]);
  for (std::size_t i = 1; i < size; ++i) {
    if (at + i == text.size()) return {Kind::truncated, i};
    // The second byte rules out overlong forms, surrogates and characters above U+10FFFF.
    const unsigned char low = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) return {Kind::invalid, i};
  }
  return {Kind::valid, size};
}

std::size_t utf8_valid_until(std::string_view text, std::size_t at) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t whole = at;  // end of the complete characters
  std::uint64_t state = kUtf8Whole;
  while (at < text.size()) {
    const std::size_t end = std::min(text.size(), at + kUtf8Block);
    if (state == kUtf8Whole && is_ascii(bytes + at, end - at)) {
      whole = at = end;
      continue;
    }
    for (; at < end; ++at) state = kUtf8Steps[bytes[at]] >> state & 63;
    if (state == kUtf8Wrong) break;
    // A character may continue in the next block; its first byte is one of the last three.
    whole = end;
    if (state != kUtf8Whole) {
      do --whole;
      while ((bytes[whole] & 0xc0) == 0x80);
    }
  }
  if (state == kUtf8Whole) return text.size();
  // The last block has an error; the slow path locates it.
  for (at = whole; at < text.size();) {
    const Utf8Sequence sequence = utf8_sequence(text, at);
    if (sequence.kind != Utf8Sequence::Kind::valid) return at;
    at += sequence.size;
  }
  return text.size();
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto [kind, size] = utf8_sequence(text, at);
    const auto first = static_cast<unsigned char>(text[at]);
    // U+0080 to U+009F are control characters too.
    const bool control = size == 1
                             ? first < 0x20 || first == 0x7f
                             : first == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0;
    if (first == '\n') {
      out += "⏎";
    } else if (kind != Utf8Sequence::Kind::valid || control) {
      out.append(size, '.');
    } else {
      out += text.substr(at, size);
    }
    at += size;
  }
  return out;
}

}  // namespace tessera
