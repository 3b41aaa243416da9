#include "tessera/core/utf8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace tessera {
namespace {

using Utf8Kind = Utf8Sequence::Kind;

// Reference: decodes without checks of single bytes, then encodes again.
bool is_character(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const std::size_t size = byte(0) < 0x80   ? 1
                           : byte(0) < 0xc0 ? 0
                           : byte(0) < 0xe0 ? 2
                           : byte(0) < 0xf0 ? 3
                           : byte(0) < 0xf8 ? 4
                                            : 0;
  if (size != bytes.size()) return false;
  char32_t c = size == 1 ? byte(0) : byte(0) & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return false;
    c = c << 6 | (byte(i) & 0x3f);
  }
  if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
  std::string again;
  append_utf8(again, c);
  return again == bytes;
}

TEST(Utf8, RoundTripsEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text = "x";
    append_utf8(text, c);
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    const Utf8Sequence sequence = utf8_sequence(text, 1);
    ASSERT_EQ(sequence.kind == Utf8Kind::valid, !surrogate) << std::hex << std::uint32_t{c};
    ASSERT_EQ(utf8_valid_until(text), surrogate ? 1 : text.size()) << std::hex << std::uint32_t{c};
    if (surrogate) continue;
    ASSERT_EQ(sequence.size, text.size() - 1);
    ASSERT_EQ(utf8_length(text[1]), text.size() - 1);
    ASSERT_EQ(utf8_before(text, text.size()), 1u);
    std::size_t at = 1;
    ASSERT_EQ(utf8_next(text, at), c);
    ASSERT_EQ(at, text.size());
    for (std::size_t size = 2; size < text.size(); ++size) {
      const Utf8Sequence cut = utf8_sequence(std::string_view(text).substr(0, size), 1);
      ASSERT_EQ(cut.kind, Utf8Kind::truncated) << std::hex << std::uint32_t{c};
      ASSERT_EQ(cut.size, size - 1) << std::hex << std::uint32_t{c};
    }
  }
}

// All sequences of up to three bytes, and those of four bytes with the limits of each range.
TEST(Utf8, ClassifiesEverySequenceLikeTheReference) {
  std::string limits;
  for (const int byte : {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff}) {
    limits += static_cast<char>(byte);
  }
  const auto check = [](std::string_view bytes) {
    const Utf8Sequence sequence = utf8_sequence(bytes, 0);
    const bool valid = sequence.kind == Utf8Kind::valid;
    return sequence.size <= bytes.size() &&
           (!valid || is_character(bytes.substr(0, sequence.size))) &&
           (valid || !is_character(bytes)) &&
           (sequence.kind != Utf8Kind::truncated || sequence.size == bytes.size()) &&
           (utf8_valid_until(bytes) > 0) == valid;
  };
  std::string bytes;
  for (int first = 0; first < 256; ++first) {
    bytes.assign(1, static_cast<char>(first));
    ASSERT_TRUE(check(bytes)) << first;
    for (int second = 0; second < 256; ++second) {
      bytes.resize(1);
      bytes += static_cast<char>(second);
      ASSERT_TRUE(check(bytes)) << first << " " << second;
      for (int third = 0; third < 256; ++third) {
        bytes.resize(2);
        bytes += static_cast<char>(third);
        ASSERT_TRUE(check(bytes)) << first << " " << second << " " << third;
        if (first < 0xe0 || limits.find(bytes[1]) == limits.npos ||
            limits.find(bytes[2]) == limits.npos) {
          continue;
        }
        for (const char fourth : limits) {
          bytes.resize(3);
          bytes += fourth;
          ASSERT_TRUE(check(bytes)) << first << " " << second << " " << third;
        }
      }
    }
  }
}

// Longer than the blocks that utf8_valid_until() checks at once.
TEST(Utf8, FindsTheFirstInvalidByteLikeTheReference) {
  const auto slow = [](std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
      std::size_t size = 1;
      while (size <= 4 && !is_character(text.substr(at, size))) ++size;
      if (size > 4) return at;
      at += size;
    }
    return at;
  };
  std::mt19937_64 random(8);
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random() % 130, 'a');
    for (std::uint64_t k = random() % 30; k > 0; --k) {
      append_utf8(text, static_cast<char32_t>(random() % 4 == 0 ? random() % 0x110000
                                              : random() % 2    ? random() % 0x900
                                                                : 0xd700 + random() % 0x2000));
      text.append(random() % 20, 'b');
    }
    if (!text.empty() && random() % 2 == 0) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) {
      text.resize(text.size() - std::min<std::size_t>(text.size(), random() % 4));
    }
    ASSERT_EQ(utf8_valid_until(text), slow(text)) << round;
  }
}

}  // namespace
}  // namespace tessera
