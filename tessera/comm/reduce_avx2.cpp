// Reductions for x86_64 with AVX2. There is no AVX-512 version: long ranges are memory-bound with
// either.
#if defined(__x86_64__)

#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_COMPILE_ONLY_STATIC
#include "tessera/comm/reduce_kernels.h"

#endif
