// The slow reference of 8-bit moments, and rounding to nearest: [Note: 8-bit moments] in moments.h.
#include "tessera/kernels/moments.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tessera/core/shard.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::kernels {
namespace {

static_assert(kMomentBlock == kShardAlign);

constexpr int kLeastExponent = 75;

int step_exponent(MomentCode code, int exponent) {
  return exponent - (code == MomentCode::plain ? 133 : 134);
}

// `noise_of`: returns the number below 2^16 that is added to element i before it is rounded down.
template <class NoiseOf>
void encode(MomentCode code, const float* from, std::byte* to, std::size_t blocks,
            const NoiseOf& noise_of) {
  for (std::size_t b = 0; b < blocks; ++b, to += kMomentBlockBytes) {
    float value[kMomentBlock];
    float most = 0;
    for (std::size_t i = 0; i < kMomentBlock; ++i) {
      value[i] = from[b * kMomentBlock + i];
      if (code == MomentCode::root) value[i] = std::sqrt(value[i]);
      most = std::max(most, std::abs(value[i]));
    }
    const auto biased = static_cast<int>(std::bit_cast<std::uint32_t>(most) >> 23);
    const int exponent = std::max(kLeastExponent, biased);
    to[0] = static_cast<std::byte>(exponent);
    for (std::size_t i = 0; i < kMomentBlock; ++i) {
      const double scaled = std::ldexp(double{value[i]}, 16 - step_exponent(code, exponent));
      const double sum = std::trunc(scaled) + noise_of(b * kMomentBlock + i);
      const double rounded = std::floor(sum / 65536);
      const double least = code == MomentCode::plain ? -127 : (value[i] > 0 ? 1 : 0);
      const double limited = std::clamp(rounded, least, code == MomentCode::plain ? 127. : 255.);
      to[1 + i] = static_cast<std::byte>(static_cast<int>(limited));
    }
  }
}

}  // namespace

void encode_moments_nearest(MomentCode code, const float* from, std::byte* to, std::size_t blocks) {
  encode(code, from, to, blocks, [](std::size_t) { return 32768; });
}

namespace reference {

void decode_moments(MomentCode code, const std::byte* from, float* to, std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, from += kMomentBlockBytes) {
    const int exponent = std::max(kLeastExponent, static_cast<int>(from[0]));
    for (std::size_t i = 0; i < kMomentBlock; ++i) {
      const auto bits = static_cast<std::uint8_t>(from[1 + i]);
      const double c = code == MomentCode::plain ? static_cast<std::int8_t>(bits) : bits;
      const double value = std::ldexp(c, step_exponent(code, exponent));
      to[b * kMomentBlock + i] =
          static_cast<float>(code == MomentCode::plain ? value : value * value);
    }
  }
}

void encode_moments(MomentCode code, const float* from, std::byte* to, std::size_t blocks,
                    const MomentNoise& noise) {
  encode(code, from, to, blocks, [&](std::size_t i) {
    return noise_of(noise.begin + i, noise.stream, noise.seed, noise.step);
  });
}

}  // namespace reference
}  // namespace tessera::kernels
