// Reductions for aarch64.
#if defined(__aarch64__)

#define HWY_BASELINE_TARGETS HWY_NEON
#define HWY_COMPILE_ONLY_STATIC
#include "tessera/comm/reduce_kernels.h"

#endif
