#pragma once

#include <cstdint>

#include "tessera/core/philox.h"

namespace tessera {

// out[i] = scale · random.normal(first + i), to the bit, several times faster: see normals.cpp.
void fill_normals(const Philox& random, std::uint64_t first, std::uint64_t count, float scale,
                  float* out);

}  // namespace tessera
