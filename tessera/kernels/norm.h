#pragma once

#include <cstddef>

#include "tessera/kernels/types.h"

namespace tessera::kernels {

// Returns the sum of x² in fp64. The order of additions depends only on n, so the bits are the same
// on every processor: element i goes to partial sum i % 16, and the partial sums are added as a
// binary tree.
double sum_of_squares(const void* x, Type type, std::size_t n);

namespace reference {
double sum_of_squares(const void* x, Type type, std::size_t n);  // returns the same bits
}

}  // namespace tessera::kernels
