#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::kernels {

// [Note: 8-bit moments] A block of 16 elements takes 17 bytes: the biased exponent e of an fp32
// number, then a code of 8 bits per element. With q = 2^(e - 133) for `plain` and 2^(e - 134) for
// `root`, a code c stands for
//   plain   c · q,    c a signed number: first moments
//   root    (c · q)², c an unsigned number: second moments, which are never negative
// e is that of the largest element of the block (of its root), and at least 75. The first and
// second moment thus have the same resolution, so that an element with small gradients gets a small
// step.
//
// Codes are rounded stochastically: with the 16 random bits n of an element (see [Note: noise] in
// optimizer.h) the code is (t + n) / 2^16 rounded down, where t is the value · 2^16 / q rounded
// toward 0. A small change of a moment is therefore not lost, but made with a small probability.
// Codes are limited to ±127 and 255, and a positive second moment has at least code 1: the divisor
// of a step is 0 only if all its gradients were.
//
// Blocks are counted from the beginning of a parameter. Shards begin and end at multiples of 16
// elements ([Note: shards of a parameter] in core/shard.h), so that every sharding has the same
// blocks. Encoding decoded values again gives the same values. Values are finite.
inline constexpr std::size_t kMomentBlock = 16;
inline constexpr std::size_t kMomentBlockBytes = kMomentBlock + 1;

// Code of an 8-bit moment.
enum class MomentCode : std::uint8_t { plain, root };

// Key of the random bits of a step.
struct MomentNoise {
  std::uint64_t begin = 0;  // index of the first element within the whole parameter; multiple of 16
  std::uint64_t stream = 0;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
};

// Decodes blocks to 16 · blocks elements. Bytes that are 0 stand for 0.
void decode_moments(MomentCode code, const std::byte* from, float* to, std::size_t blocks);
// Encodes 16 · blocks elements, rounded stochastically.
void encode_moments(MomentCode code, const float* from, std::byte* to, std::size_t blocks,
                    const MomentNoise& noise);
// The same rounded to nearest, for loading: one element at a time.
void encode_moments_nearest(MomentCode code, const float* from, std::byte* to, std::size_t blocks);

namespace reference {  // one element at a time, in double precision; the same bits
void decode_moments(MomentCode code, const std::byte* from, float* to, std::size_t blocks);
void encode_moments(MomentCode code, const float* from, std::byte* to, std::size_t blocks,
                    const MomentNoise& noise);
}  // namespace reference

}  // namespace tessera::kernels
