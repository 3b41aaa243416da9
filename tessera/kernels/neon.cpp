// Kernels for aarch64.
#if defined(__aarch64__)

#define HWY_BASELINE_TARGETS HWY_NEON
#define HWY_COMPILE_ONLY_STATIC
#include "tessera/kernels/set_impl.h"

#endif
