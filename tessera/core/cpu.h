// Run-time detection of the instruction sets of core/simd.h, each with all extensions that Highway
// requires for it. aarch64 always has NEON.
#pragma once

namespace tessera {

#if defined(__x86_64__)
inline bool has_ssse3() { return __builtin_cpu_supports("ssse3"); }
inline bool has_avx2() {
  return has_ssse3() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

}  // namespace tessera
