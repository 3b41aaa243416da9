#pragma once

#include <array>
#include <cstdint>

#include "tessera/core/philox.h"

namespace tessera::data {

// [Note: shuffle] An order of 0 … size - 1 for every epoch, without a list of it: what comes at a
// place is computed. A Feistel network turns numbers of an even count of bits into each other one
// to one, whatever its rounds compute: a half is added to what a random function makes of the other
// half, and the halves change places. Where the result is not below `size` it is put in again: as
// the network only leads around cycles, and each number below `size` lies on one, this ends, and
// is one to one too. Its domain has less than four times as many numbers as are wanted.
class Shuffle {
 public:
  // Orders of the same size with another seed or stream are others. size: 1 to 2^62.
  Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t stream = 0);

  std::uint64_t size() const { return size_; }
  std::uint64_t at(std::uint64_t epoch, std::uint64_t place) const;  // place below size

 private:
  using Keys = std::array<std::uint32_t, 8>;  // of the rounds, in one epoch
  std::uint64_t around(const Keys& keys, std::uint64_t number) const;

  std::uint64_t size_;
  PhiloxKey key_;
  int half_bits_;
};

}  // namespace tessera::data
