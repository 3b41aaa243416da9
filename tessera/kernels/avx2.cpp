// The kernels for x86_64 with AVX2. The flags are set here, not by the build, after the last
// header: no inline function of another file may be compiled with them.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tessera/core/philox.h"
#include "tessera/kernels/sets.h"

#pragma GCC target("avx2,fma")
#define TESSERA_KERNEL_SET avx2
#define TESSERA_KERNEL_BYTES 32
#include "tessera/kernels/set_impl.h"

#endif
