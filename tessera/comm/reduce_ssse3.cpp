// Reductions for x86_64 without AVX2.
#if defined(__x86_64__)

#define HWY_BASELINE_TARGETS HWY_SSSE3
#define HWY_COMPILE_ONLY_STATIC
#include "tessera/comm/reduce_kernels.h"

#endif
