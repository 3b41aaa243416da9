#pragma once

#include <unistd.h>

// For tests that compare with Python packages. A program that includes this links tessera_interop.
// Importing transformers takes ten seconds: one process for all that a test program asks of it.

namespace tessera {

inline constexpr const char* kInteropPython = TESSERA_INTEROP_PYTHON;
inline bool has_interop() { return ::access(kInteropPython, X_OK) == 0; }

}  // namespace tessera

// At the beginning of a test.
#define TESSERA_NEEDS_INTEROP()                                                           \
  if (!tessera::has_interop())                                                            \
  GTEST_SKIP() << "no Python with transformers and others at " << tessera::kInteropPython \
               << "; scripts/interop.sh makes it, or says why not"
