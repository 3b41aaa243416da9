#pragma once

#include <cstdint>

#include "tessera/core/philox.h"

namespace tessera {

// Writes out[i] = scale · random.normal(first + i), bit-exact but several times faster.
void fill_normals(const Philox& random, std::uint64_t first, std::uint64_t count, float scale,
                  float* out);

}  // namespace tessera
