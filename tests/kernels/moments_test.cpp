#include "tessera/kernels/moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tessera/core/philox.h"
#include "tessera/kernels/sets.h"

namespace tessera::kernels {
namespace {

constexpr MomentCode kCodes[] = {MomentCode::plain, MomentCode::root};

// Values of very different sizes, with blocks of zeros; not negative for second moments.
std::vector<float> moments(MomentCode code, std::size_t blocks, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(blocks * kMomentBlock);
  for (std::size_t b = 0; b < blocks; ++b) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random() % 140) - 100);
    for (std::size_t i = 0; i < kMomentBlock; ++i) {
      float value = b % 7 == 3 ? 0 : scale * normal(random);
      if (random() % 5 == 0) value *= 0x1p-20f;
      if (random() % 11 == 0) value = 0;
      values[b * kMomentBlock + i] = code == MomentCode::plain ? value : value * value;
    }
  }
  return values;
}

MomentNoise noise_at(std::uint64_t begin) { return {begin, stream_of("w"), 11, 7}; }

TEST(Moments, EverySetEqualsTheReferenceBitForBit) {
  for (const KernelSet* set : usable_sets()) {
    for (const MomentCode code : kCodes) {
      for (const std::size_t blocks : {0u, 1u, 2u, 7u, 8u, 9u, 1000u}) {
        SCOPED_TRACE(testing::Message() << set->name << " blocks " << blocks);
        const std::vector<float> values = moments(code, blocks, 3);
        std::vector<std::byte> wanted(blocks * kMomentBlockBytes), got(wanted.size());
        reference::encode_moments(code, values.data(), wanted.data(), blocks, noise_at(48));
        set->encode_moments(code, values.data(), got.data(), blocks, noise_at(48));
        EXPECT_TRUE(got == wanted);
        std::vector<float> slow(values.size()), fast(values.size());
        reference::decode_moments(code, wanted.data(), slow.data(), blocks);
        set->decode_moments(code, wanted.data(), fast.data(), blocks);
        EXPECT_TRUE(fast == slow);
      }
    }
  }
}

TEST(Moments, CodesDoNotDependOnWhereAShardBegins) {
  constexpr std::size_t kBlocks = 40;
  for (const MomentCode code : kCodes) {
    const std::vector<float> values = moments(code, kBlocks, 5);
    std::vector<std::byte> whole(kBlocks * kMomentBlockBytes), parts(whole.size());
    encode_moments(code, values.data(), whole.data(), kBlocks, noise_at(0));
    for (std::size_t at = 0; at < kBlocks; at += 3) {
      encode_moments(code, values.data() + at * kMomentBlock, parts.data() + at * kMomentBlockBytes,
                     std::min<std::size_t>(3, kBlocks - at), noise_at(at * kMomentBlock));
    }
    EXPECT_TRUE(parts == whole);
  }
}

TEST(Moments, DecodedValuesEncodeToTheSameValues) {
  constexpr std::size_t kBlocks = 3000;
  for (const MomentCode code : kCodes) {
    const std::vector<float> values = moments(code, kBlocks, 9);
    std::vector<std::byte> bytes(kBlocks * kMomentBlockBytes), again(bytes.size());
    encode_moments(code, values.data(), bytes.data(), kBlocks, noise_at(0));
    std::vector<float> decoded(values.size()), twice(values.size());
    decode_moments(code, bytes.data(), decoded.data(), kBlocks);
    encode_moments_nearest(code, decoded.data(), again.data(), kBlocks);
    decode_moments(code, again.data(), twice.data(), kBlocks);
    EXPECT_TRUE(twice == decoded);
  }
}

TEST(Moments, RoundingHasNoBias) {
  std::vector<float> values(kMomentBlock, 0.0f);
  values[0] = 1.9f;
  values[1] = 0.003f;  // a fifth of the distance of two codes
  values[2] = -0.7001f;
  std::vector<double> mean(kMomentBlock);
  constexpr int kSteps = 20000;
  for (int step = 0; step < kSteps; ++step) {
    std::byte bytes[kMomentBlockBytes];
    float decoded[kMomentBlock];
    encode_moments(MomentCode::plain, values.data(), bytes, 1, {0, 1, 2, step});
    decode_moments(MomentCode::plain, bytes, decoded, 1);
    for (std::size_t i = 0; i < kMomentBlock; ++i) mean[i] += double{decoded[i]} / kSteps;
  }
  // The standard deviation of the mean is below 0.016 / 2 / sqrt(20000) = 6e-5.
  for (std::size_t i = 0; i < kMomentBlock; ++i) EXPECT_NEAR(mean[i], values[i], 3e-4) << i;
}

TEST(Moments, APositiveSecondMomentNeverBecomesZero) {
  std::vector<float> values(kMomentBlock, 0x1p-60f);
  values[0] = 4;
  values[1] = 0;
  for (int step = 0; step < 100; ++step) {
    std::byte bytes[kMomentBlockBytes];
    float decoded[kMomentBlock];
    encode_moments(MomentCode::root, values.data(), bytes, 1, {0, 1, 2, step});
    decode_moments(MomentCode::root, bytes, decoded, 1);
    EXPECT_EQ(decoded[0], 4);
    EXPECT_EQ(decoded[1], 0);
    EXPECT_EQ(decoded[2], 0x1p-12f);  // (2 / 128)²
  }
}

TEST(Moments, BytesOfZeroStandForZero) {
  const std::byte bytes[kMomentBlockBytes] = {};
  for (const MomentCode code : kCodes) {
    float decoded[kMomentBlock];
    decode_moments(code, bytes, decoded, 1);
    for (const float value : decoded) EXPECT_EQ(std::signbit(value) ? -1 : value, 0);
  }
}

}  // namespace
}  // namespace tessera::kernels
