#pragma once

#include <string_view>

#include "tessera/core/errors.h"
#include "tessera/planner/hardware.h"

namespace tessera {

// Whether toml++ was there when this was built. The catalogue of hardware is such a file itself.
inline bool reads_toml() {
  try {
    const planner::Catalogue catalogue;
    return true;
  } catch (const UsageError& error) {
    if (std::string_view(error.what()).find("cannot read TOML") == std::string_view::npos) throw;
    return false;
  }
}

}  // namespace tessera

// At the beginning of a test. Where a whole source needs it, see TOML of tessera_test.
#define TESSERA_NEEDS_TOML() \
  if (!tessera::reads_toml()) GTEST_SKIP() << "built without toml++"
