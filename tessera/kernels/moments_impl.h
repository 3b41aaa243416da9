// 8-bit moments for one instruction set: see [Note: 8-bit moments] in moments.h and [Note: sets] in
// core/simd.h.
#pragma once

#include "tessera/kernels/moments.h"
#include "tessera/kernels/optimizer_impl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::uint32_t least_exponent = 75;
constexpr std::size_t block_vectors = kMomentBlock / lanes;
constexpr Tag<std::int32_t> integers;

template <MomentCode code>
using Code = std::conditional_t<code == MomentCode::plain, std::int8_t, std::uint8_t>;

TESSERA_INLINE F power(std::uint32_t biased_exponent) {
  return as_floats(splat<std::uint32_t>(biased_exponent << 23));
}

template <MomentCode code>
void decode_blocks(const std::byte* from, float* to, std::size_t blocks) {
  constexpr NarrowTag<Code<code>, float> narrow;
  constexpr std::uint32_t below = code == MomentCode::plain ? 6 : 7;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto stored = static_cast<std::uint32_t>(from[0]);
    const F q = power((stored < least_exponent ? least_exponent : stored) - below);
    const auto* codes = reinterpret_cast<const Code<code>*>(from + 1);
    TESSERA_UNROLL for (std::size_t k = 0; k < block_vectors; ++k) {
      const auto whole = hn::PromoteTo(integers, hn::LoadU(narrow, codes + k * lanes));
      const F value = hn::ConvertTo(floats, whole) * q;
      store(to + k * lanes, code == MomentCode::plain ? value : value * value);
    }
    from += kMomentBlockBytes;
    to += kMomentBlock;
  }
}

template <MomentCode code>
void encode_blocks(const float* from, std::byte* to, std::size_t blocks, const MomentNoise& key) {
  constexpr NarrowTag<Code<code>, float> narrow;
  constexpr std::uint32_t inverse = code == MomentCode::plain ? 276 : 277;
  std::uint64_t at = key.begin, made = ~std::uint64_t{0};  // element; group whose noise is made
  std::uint32_t noise[noise_words];
  for (std::size_t b = 0; b < blocks; ++b) {
    if (at / group != made) {
      made = at / group;
      make_noise({key.seed, key.stream, static_cast<std::uint32_t>(key.step)},
                 static_cast<std::uint32_t>(made), noise);
    }
    F value[block_vectors];
    U most = splat<std::uint32_t>(0);
    TESSERA_UNROLL for (std::size_t k = 0; k < block_vectors; ++k) {
      value[k] = load(from + k * lanes);
      if constexpr (code == MomentCode::root) value[k] = sqrt(value[k]);
      most = hn::Max(most, hn::And(as_bits(value[k]), splat<std::uint32_t>(0x7fffffffu)));
    }
    std::uint32_t exponent = hn::GetLane(hn::MaxOfLanes(words, most)) >> 23;
    if (exponent < least_exponent) exponent = least_exponent;
    to[0] = static_cast<std::byte>(exponent);
    const F scale = power(inverse - exponent);
    auto* codes = reinterpret_cast<Code<code>*>(to + 1);
    TESSERA_UNROLL for (std::size_t k = 0; k < block_vectors; ++k) {
      const U random = noise_at(noise, at % group + k * lanes);
      auto c = hn::ShiftRight<16>(hn::ConvertTo(integers, value[k] * scale) +
                                  hn::BitCast(integers, random));
      if constexpr (code == MomentCode::plain) {
        c = hn::Max(hn::Min(c, splat<std::int32_t>(127)), splat<std::int32_t>(-127));
      } else {
        const auto least =
            hn::IfThenElseZero(hn::RebindMask(integers, value[k] > zero()), splat<std::int32_t>(1));
        c = hn::Max(hn::Min(c, splat<std::int32_t>(255)), least);
      }
      hn::StoreU(hn::DemoteTo(narrow, c), narrow, codes + k * lanes);
    }
    from += kMomentBlock;
    to += kMomentBlockBytes;
    at += kMomentBlock;
  }
}

void decode_moments(MomentCode code, const std::byte* from, float* to, std::size_t blocks) {
  if (code == MomentCode::plain) {
    decode_blocks<MomentCode::plain>(from, to, blocks);
  } else {
    decode_blocks<MomentCode::root>(from, to, blocks);
  }
}

void encode_moments(MomentCode code, const float* from, std::byte* to, std::size_t blocks,
                    const MomentNoise& noise) {
  if (code == MomentCode::plain) {
    encode_blocks<MomentCode::plain>(from, to, blocks, noise);
  } else {
    encode_blocks<MomentCode::root>(from, to, blocks, noise);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
