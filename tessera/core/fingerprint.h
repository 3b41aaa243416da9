#pragma once

#include <cstdint>

namespace tessera {

// Returns the contribution of elements [first, first + count) of a parameter to the fingerprint of
// a model, [Note: frozen parameters in checkpoints] in parallel/frozen.h. `bits`: the elements
// rounded to bf16. `stream`: stream_of() the parameter's name. The fingerprint is the sum of all
// contributions, in any order.
inline std::uint64_t fingerprint_of(const std::uint16_t* bits, std::int64_t count,
                                    std::uint64_t stream, std::int64_t first) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    // The finalizer of splitmix64.
    std::uint64_t x = stream + static_cast<std::uint64_t>(first + i);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    sum += (bits[i] + std::uint64_t{1}) * x;
  }
  return sum;
}

// Key of the fingerprint among the texts of a checkpoint without frozen parameters. No parameter
// can have this name.
inline constexpr const char* kFrozenKey = "updates/ frozen";
// First character of the fingerprint if the layout stores parameters in fp16. They are rounded
// twice, so the fingerprint differs.
inline constexpr char kFingerprintOfHalf = 'h';

}  // namespace tessera
