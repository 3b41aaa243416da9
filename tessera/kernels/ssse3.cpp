// Kernels for x86_64 without AVX2.
#if defined(__x86_64__)

#define HWY_BASELINE_TARGETS HWY_SSSE3
#define HWY_COMPILE_ONLY_STATIC
#include "tessera/kernels/set_impl.h"

#endif
