#pragma once

#include <array>
#include <cstdint>

#include "tessera/core/philox.h"

namespace tessera::data {

// [Note: shuffle] Random permutation of 0 … size - 1 for every epoch, computed element by element
// without storing it. A Feistel network is a bijection on numbers with an even number of bits,
// whatever its rounds compute: each round adds a random function of one half to the other half and
// swaps the halves. A result that is not below `size` is fed in again. The network only moves along
// cycles, and each number below `size` lies on one, so this terminates and stays a bijection. The
// domain is less than four times `size` (for all but small sizes).
class Shuffle {
 public:
  // Different seeds or streams give different permutations. size: 1 to 2^62.
  Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t stream = 0);

  std::uint64_t size() const { return size_; }
  std::uint64_t at(std::uint64_t epoch,
                   std::uint64_t position) const;  // position must be below size()

 private:
  using Keys = std::array<std::uint32_t, 8>;  // of the rounds of one epoch
  std::uint64_t permute(const Keys& keys, std::uint64_t number) const;

  std::uint64_t size_;
  PhiloxKey key_;
  int half_bits_;
};

}  // namespace tessera::data
