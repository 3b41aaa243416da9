#pragma once

#include <unistd.h>

// For tests that compare with Python packages. A program that includes this links tessera_interop.
// Importing transformers takes ten seconds, so a test program does all its Python work in one
// process.

namespace tessera {

inline constexpr const char* kInteropPython = TESSERA_INTEROP_PYTHON;
inline bool has_interop() { return ::access(kInteropPython, X_OK) == 0; }

}  // namespace tessera

// Skips the test if the Python is missing.
#define TESSERA_NEEDS_INTEROP()                                                           \
  if (!tessera::has_interop())                                                            \
  GTEST_SKIP() << "no Python with transformers and others at " << tessera::kInteropPython \
               << "; scripts/interop.sh creates it or prints why it cannot"
