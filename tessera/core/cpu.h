// Which instruction sets of core/simd.h this processor has, besides the one it always has on
// aarch64 (NEON). With all that Highway takes for granted in them.
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
