#include "tessera/checkpoint/checksum.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tessera::checkpoint {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b]: effect of byte b on the checksum if k more bytes follow.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xffu];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

// A checksum is a polynomial modulo that of CRC-32C. Its highest bit is the coefficient of x^0.
// Appending n bytes to a text multiplies its checksum by x^(8n).
constexpr std::uint32_t product_of(std::uint32_t f, std::uint32_t g) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((f & bit) != 0) product ^= g;
    g = (g >> 1) ^ ((g & 1u) != 0 ? 0x82f63b78u : 0u);
  }
  return product;
}
constexpr std::uint32_t shift_bytes(std::uint32_t crc, std::uint64_t bytes) {
  std::uint32_t power = 0x00800000u;  // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1u) != 0) crc = product_of(crc, power);
    power = product_of(power, power);
  }
  return crc;
}

// Tables for shift_bytes() by kLaneBytes: the result of each byte of a checksum.
constexpr std::size_t kLaneBytes = 2048;
constexpr std::array<std::array<std::uint32_t, 256>, 4> make_lane_tables() {
  std::array<std::array<std::uint32_t, 256>, 4> tables{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t bit = 0; bit < 8; ++bit) {
      const std::uint32_t shifted = shift_bytes(1u << (8 * k + bit), kLaneBytes);
      for (std::size_t b = 0; b < 256; ++b) tables[k][b] ^= (b >> bit & 1u) != 0 ? shifted : 0u;
    }
  }
  return tables;
}
constexpr auto kLaneTables = make_lane_tables();
std::uint32_t shift_lane(std::uint32_t crc) {
  return kLaneTables[0][crc & 0xffu] ^ kLaneTables[1][crc >> 8 & 0xffu] ^
         kLaneTables[2][crc >> 16 & 0xffu] ^ kLaneTables[3][crc >> 24];
}

std::uint32_t by_table(const unsigned char* at, std::size_t bytes, std::uint32_t crc) {
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word = crc;
    for (std::size_t i = 0; i < 8; ++i) word ^= std::uint64_t{at[i]} << (8 * i);
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xffu];
  }
  for (; bytes > 0; --bytes, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xffu];
  return crc;
}

#if defined(__aarch64__)
#if defined(__clang__)  // its header declares them only if the target has crc
#define TESSERA_CRC_TARGET __attribute__((target("crc")))
#define TESSERA_CRC_WORD(crc, word) __builtin_arm_crc32cd(crc, word)
#define TESSERA_CRC_BYTE(crc, byte) __builtin_arm_crc32cb(crc, byte)
#else
#define TESSERA_CRC_TARGET __attribute__((target("+crc")))
#define TESSERA_CRC_WORD(crc, word) __crc32cd(crc, word)
#define TESSERA_CRC_BYTE(crc, byte) __crc32cb(crc, byte)
#endif
bool has_instruction() { return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#elif defined(__x86_64__)
#define TESSERA_CRC_TARGET __attribute__((target("sse4.2")))
#define TESSERA_CRC_WORD(crc, word) static_cast<std::uint32_t>(_mm_crc32_u64(crc, word))
#define TESSERA_CRC_BYTE(crc, byte) _mm_crc32_u8(crc, byte)
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#endif

#if defined(TESSERA_CRC_TARGET)
TESSERA_CRC_TARGET std::uint32_t by_instruction(const unsigned char* at, std::size_t bytes,
                                                std::uint32_t crc) {
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    crc = TESSERA_CRC_WORD(crc, word);
  }
  for (; bytes > 0; --bytes, ++at) crc = TESSERA_CRC_BYTE(crc, *at);
  return crc;
}
// Computes four consecutive lanes at once, because a single chain of instructions is bound by their
// latency. The later lanes start from 0, and their checksums are combined at the end.
TESSERA_CRC_TARGET std::uint32_t by_lanes(const unsigned char* at, std::size_t bytes,
                                          std::uint32_t crc) {
  for (; bytes >= 4 * kLaneBytes; bytes -= 4 * kLaneBytes, at += 4 * kLaneBytes) {
    std::uint32_t a = crc, b = 0, c = 0, d = 0;
    for (std::size_t i = 0; i < kLaneBytes; i += 8) {
      std::uint64_t words[4];
      for (std::size_t k = 0; k < 4; ++k) std::memcpy(&words[k], at + k * kLaneBytes + i, 8);
      a = TESSERA_CRC_WORD(a, words[0]);
      b = TESSERA_CRC_WORD(b, words[1]);
      c = TESSERA_CRC_WORD(c, words[2]);
      d = TESSERA_CRC_WORD(d, words[3]);
    }
    crc = shift_lane(shift_lane(shift_lane(a) ^ b) ^ c) ^ d;
  }
  return by_instruction(at, bytes, crc);
}
// Computes the checksums of four consecutive blocks.
TESSERA_CRC_TARGET void four_blocks(const unsigned char* at, std::uint32_t* out) {
  std::uint32_t a = ~0u, b = ~0u, c = ~0u, d = ~0u;
  for (std::int64_t i = 0; i < kBlockBytes; i += 8) {
    std::uint64_t words[4];
    for (int k = 0; k < 4; ++k) std::memcpy(&words[k], at + k * kBlockBytes + i, 8);
    a = TESSERA_CRC_WORD(a, words[0]);
    b = TESSERA_CRC_WORD(b, words[1]);
    c = TESSERA_CRC_WORD(c, words[2]);
    d = TESSERA_CRC_WORD(d, words[3]);
  }
  out[0] = ~a, out[1] = ~b, out[2] = ~c, out[3] = ~d;
}
#else
bool has_instruction() { return false; }
void four_blocks(const unsigned char* at, std::uint32_t* out) {
  for (int k = 0; k < 4; ++k) out[k] = ~by_table(at + k * kBlockBytes, kBlockBytes, ~0u);
}
std::uint32_t by_lanes(const unsigned char* at, std::size_t bytes, std::uint32_t crc) {
  return by_table(at, bytes, crc);
}
#endif

bool instruction() {
  static const bool has = has_instruction();
  return has;
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
  if (!instruction()) return crc32c_portable(data, bytes, crc);
  return ~by_lanes(static_cast<const unsigned char*>(data), bytes, ~crc);
}

std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t crc) {
  return ~by_table(static_cast<const unsigned char*>(data), bytes, ~crc);
}

std::uint32_t crc32c_joined(std::uint32_t a, std::uint32_t b, std::uint64_t bytes_of_b) {
  return shift_bytes(a, bytes_of_b) ^ b;
}

void crc32c_blocks(const std::byte* data, std::int64_t bytes, std::vector<std::uint32_t>& out) {
  std::int64_t at = 0;
  for (; instruction() && bytes - at >= 4 * kBlockBytes; at += 4 * kBlockBytes) {
    out.resize(out.size() + 4);
    four_blocks(reinterpret_cast<const unsigned char*>(data) + at, &out[out.size() - 4]);
  }
  for (; at < bytes; at += kBlockBytes) {
    out.push_back(crc32c(data + at, static_cast<std::size_t>(std::min(kBlockBytes, bytes - at))));
  }
}

std::string to_hex(const std::vector<std::uint32_t>& checksums) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(8 * checksums.size());
  for (const std::uint32_t crc : checksums) {
    for (int shift = 28; shift >= 0; shift -= 4) text += digits[(crc >> shift) & 0xfu];
  }
  return text;
}

bool from_hex(std::string_view text, std::vector<std::uint32_t>& checksums) {
  checksums.clear();
  if (text.size() % 8 != 0) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    std::uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint32_t>(c - 'a') + 10;
    } else {
      return false;
    }
    if (i % 8 == 0) checksums.push_back(0);
    checksums.back() = checksums.back() << 4 | digit;
  }
  return true;
}

}  // namespace tessera::checkpoint
