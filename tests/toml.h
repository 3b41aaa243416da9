#pragma once

#include <string_view>

#include "tessera/core/errors.h"
#include "tessera/planner/hardware.h"

namespace tessera {

// Returns true if the build has toml++. The hardware catalog is itself a TOML file.
inline bool reads_toml() {
  try {
    const planner::Catalog catalog;
    return true;
  } catch (const UsageError& error) {
    if (std::string_view(error.what()).find("cannot read TOML") == std::string_view::npos) throw;
    return false;
  }
}

}  // namespace tessera

// Skips the test if the build has no toml++. For whole sources use TOML of tessera_test.
#define TESSERA_NEEDS_TOML() \
  if (!tessera::reads_toml()) GTEST_SKIP() << "built without toml++"
