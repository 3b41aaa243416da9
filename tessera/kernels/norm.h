#pragma once

#include <cstddef>

#include "tessera/kernels/types.h"

namespace tessera::kernels {

// The sum of x² in fp64. The order of additions depends on n alone, so the bits are the same on
// every processor: element i goes to partial sum i % 16, and these are added as a binary tree.
double sum_of_squares(const void* x, Type type, std::size_t n);

namespace reference {
double sum_of_squares(const void* x, Type type, std::size_t n);  // the same bits
}

}  // namespace tessera::kernels
