// Kernels for x86_64 with AVX2.
#if defined(__x86_64__)

#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_COMPILE_ONLY_STATIC
#include "tessera/kernels/set_impl.h"

#endif
