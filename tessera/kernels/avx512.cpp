// Kernels for x86_64 with AVX-512, which Highway calls AVX3.
#if defined(__x86_64__)

#define HWY_BASELINE_TARGETS HWY_AVX3
#define HWY_COMPILE_ONLY_STATIC
#include "tessera/kernels/set_impl.h"

#endif
