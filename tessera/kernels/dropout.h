#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/types.h"

namespace tessera::kernels {

// [Note: masks] Whether a value is dropped is a function of (seed, stream, row, column): word c % 4
// of Philox block (row · ceil(width / 4) + c / 4) is compared with a threshold. Any part of a
// matrix can therefore be masked independently, in forward and in backward.
struct Dropout {
  std::uint64_t seed = 0, stream = 0;
  double rate = 0;        // in [0, 1)
  std::size_t width = 0;  // columns of the whole row
};

// Multiplies x[0, n), which are columns [first, first + n) of `row`, by 0 or 1 / (1 - rate).
void drop(const Dropout& args, Type type, std::uint64_t row, std::size_t first, void* x,
          std::size_t n);

namespace reference {
void drop(const Dropout& args, Type type, std::uint64_t row, std::size_t first, void* x,
          std::size_t n);
}

}  // namespace tessera::kernels
