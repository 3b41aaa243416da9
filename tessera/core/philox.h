#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "tessera/core/hash.h"

namespace tessera {

// Counter-based random numbers (Salmon et al., SC 2011: Philox4x32-10). A number is a function of
// its index and does not depend on earlier draws: there is no state, and the numbers are the same
// on every rank and thread and in any order.
using PhiloxBlock = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

namespace philox {
inline constexpr std::uint32_t multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr std::uint32_t weyl[2] = {0x9E3779B9u, 0xBB67AE85u};
inline constexpr int rounds = 10;
}  // namespace philox

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < philox::rounds; ++round) {
    const std::uint64_t a = std::uint64_t{philox::multiplier[0]} * counter[0];
    const std::uint64_t b = std::uint64_t{philox::multiplier[1]} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += philox::weyl[0];
    key[1] += philox::weyl[1];
  }
  return counter;
}

// Returns a stable hash of a name (64-bit FNV-1a), used as the stream of a parameter or operation.
constexpr std::uint64_t stream_of(std::string_view name) { return hash_text(name); }

// Stream `stream` of the random numbers of `seed`. bits(i) and uniform(i) use word i % 4 of block
// i / 4. A normal uses two words, so normal(i) uses other words than bits(i).
class Philox {
 public:
  constexpr Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  constexpr std::uint64_t seed() const { return seed_; }
  constexpr std::uint64_t stream() const { return stream_; }

  constexpr PhiloxBlock block(std::uint64_t counter) const {
    return philox4x32({low(counter), high(counter), low(stream_), high(stream_)},
                      {low(seed_), high(seed_)});
  }
  constexpr std::uint32_t bits(std::uint64_t index) const { return block(index / 4)[index % 4]; }
  // Returns a multiple of 2^-24 in [0, 1).
  constexpr float uniform(std::uint64_t index) const {
    return static_cast<float>(bits(index) >> 8) * 0x1p-24f;
  }
  // Returns a normal with mean 0 and variance 1 (Box-Muller). Normals 2i and 2i + 1 use block i.
  float normal(std::uint64_t index) const { return normals(index / 2)[index % 2]; }
  std::array<float, 2> normals(std::uint64_t pair) const {
    const PhiloxBlock words = block(pair);
    constexpr double pi = 3.14159265358979323846;
    // The argument of the logarithm is in [2^-33, 1].
    const double radius = std::sqrt(-2.0 * std::log((words[0] + 0.5) * 0x1p-32));
    const double angle = 2.0 * pi * ((words[1] + 0.5) * 0x1p-32);
    return {static_cast<float>(radius * std::cos(angle)),
            static_cast<float>(radius * std::sin(angle))};
  }

 private:
  static constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  static constexpr std::uint32_t high(std::uint64_t x) {
    return static_cast<std::uint32_t>(x >> 32);
  }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

// Writes out[i] = scale · random.normal(first + i), bit-exact but several times faster.
void fill_normals(const Philox& random, std::uint64_t first, std::uint64_t count, float scale,
                  float* out);

}  // namespace tessera
