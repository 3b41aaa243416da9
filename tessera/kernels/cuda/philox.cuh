#pragma once

#include <cstdint>

#include "tessera/core/philox.h"

namespace tessera::kernels::cuda {

// Computes Philox::block(high << 32 | low) of core/philox.h.
__device__ __forceinline__ void philox_block(std::uint32_t low, std::uint32_t high,
                                             std::uint64_t stream, std::uint64_t seed,
                                             std::uint32_t (&words)[4]) {
  constexpr std::uint32_t m0 = philox::multiplier[0], m1 = philox::multiplier[1];
  constexpr std::uint32_t w0 = philox::weyl[0], w1 = philox::weyl[1];
  std::uint32_t c0 = low, c1 = high;
  auto c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < philox::rounds; ++round) {
    const std::uint32_t a_high = __umulhi(m0, c0), a_low = m0 * c0;
    const std::uint32_t b_high = __umulhi(m1, c2), b_low = m1 * c2;
    c0 = b_high ^ c1 ^ k0;
    c1 = b_low;
    c2 = a_high ^ c3 ^ k1;
    c3 = a_low;
    k0 += w0;
    k1 += w1;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

}  // namespace tessera::kernels::cuda
