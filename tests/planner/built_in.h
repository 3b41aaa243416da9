#pragma once

#include "tessera/planner/hardware.h"

namespace tessera::planner {

// The catalogue that comes with the library, parsed once.
inline const Catalogue& built_in() {
  static const Catalogue catalogue;
  return catalogue;
}

}  // namespace tessera::planner
