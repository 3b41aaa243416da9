#pragma once

#include "tessera/planner/hardware.h"

namespace tessera::planner {

inline constexpr double kMB = 1e6, kGB = 1e9, kMiB = 1 << 20, kMs = 1e-3;

// Returns the built-in hardware catalog, parsed once.
inline const Catalog& built_in() {
  static const Catalog catalog;
  return catalog;
}

}  // namespace tessera::planner
