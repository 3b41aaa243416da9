// The reduction loops for x86_64 with AVX2 and F16C. The flags are set here, not by the build,
// after the last header: no inline function of another file may be compiled with them. There is no
// AVX-512 version: long ranges wait for memory with either.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "tessera/comm/reduce_internal.h"

#pragma GCC target("avx2,f16c")
#define TESSERA_REDUCE_SET avx2
#define TESSERA_REDUCE_BYTES 32
#define TESSERA_REDUCE_F16C  // GCC defines __F16C__ too late for the pragma above
#include "tessera/comm/reduce_kernels.h"

#endif
