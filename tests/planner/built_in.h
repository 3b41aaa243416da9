#pragma once

#include "tessera/planner/hardware.h"

namespace tessera::planner {

inline constexpr double kMB = 1e6, kGB = 1e9, kMiB = 1 << 20, kMs = 1e-3;

// The catalogue that comes with the library, parsed once.
inline const Catalogue& built_in() {
  static const Catalogue catalogue;
  return catalogue;
}

}  // namespace tessera::planner
