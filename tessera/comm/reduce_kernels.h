// Reduction loops, compiled once for each instruction set: see [Note: sets] in core/simd.h.
// Internal to the reduce_*.cpp files.
//
// [Note: one pass] Every source is read once and every destination written once. The accumulators
// of one step, 128 bytes, stay in registers, so no block passes through L1 twice. All loads of a
// step precede its stores, so a destination may be a source. The remainder, shorter than a step,
// uses the same instructions on a zero-filled buffer, so its bits cannot differ.
//
// [Note: contraction] The only products are by powers of two (f16 subnormals, avg by a power of
// two). They are exact or the last operation, so fused multiply-add gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tessera/comm/reduce_formats.h"
#include "tessera/comm/reduce_internal.h"
#include "tessera/comm/reduce_ops.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::comm::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_NEON
// Measured on a Neoverse-N1: with prefetching 512 bytes ahead, ranges in L3 take 15 to 30% less
// time, ranges in memory the same. Prefetching for writes and non-temporal stores gain nothing.
constexpr std::size_t prefetch_bytes = 512;
constexpr bool fuse = true;
#else
constexpr std::size_t prefetch_bytes = 0;
constexpr bool fuse = vector_bytes > 16;  // SSSE3 is for processors before 2013: keep code small
#endif

template <class In, class Out, class Op>
struct Loop {
  using T = typename In::Lane;
  static constexpr std::size_t step = elements<T>;
  static constexpr bool fused =
      fuse && Op::fused && std::is_same_v<In, Out> && std::is_floating_point_v<T>;

  TESSERA_INLINE void prefetch(const char* from) {
    if constexpr (prefetch_bytes > 0) {
      for (std::size_t line = 0; line < step * In::bytes; line += 64) {
        __builtin_prefetch(from + prefetch_bytes + line);
      }
    }
  }
  TESSERA_INLINE void combine(V<T>* acc, const V<T>* next) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      acc[k] = Op::template combine<T>(acc[k], next[k]);
    }
  }
  TESSERA_INLINE void finish(V<T>* acc, T factor) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      acc[k] = OneNan::of<T>(Op::template finish<T>(acc[k], factor));
    }
  }

  // Specialization for common numbers of ranks: their pointers stay in registers, which gains up to
  // 50%. Returns the number of elements done; less than a step remains.
  template <std::size_t Sources, std::size_t Destinations>
  TESSERA_INLINE std::size_t fused_steps(const KernelArgs& args, T factor) {
    const char* from[Sources];
    char* to[Destinations];
    for (std::size_t s = 0; s < Sources; ++s) from[s] = static_cast<const char*>(args.source[s]);
    for (std::size_t d = 0; d < Destinations; ++d) to[d] = static_cast<char*>(args.destination[d]);
    const std::size_t steps = args.count / step;
    for (std::size_t i = 0; i < steps; ++i) {
      V<T> acc[step_vectors], next[step_vectors];
      prefetch(from[0]);
      In::load(acc, from[0]);
      from[0] += step * In::bytes;
      TESSERA_UNROLL
      for (std::size_t s = 1; s < Sources; ++s) {
        prefetch(from[s]);
        In::load(next, from[s]);
        combine(acc, next);
        from[s] += step * In::bytes;
      }
      finish(acc, factor);
      TESSERA_UNROLL
      for (std::size_t d = 0; d < Destinations; ++d) {
        Out::store(to[d], acc);
        to[d] += step * Out::bytes;
      }
    }
    return steps * step;
  }

  TESSERA_INLINE std::size_t other_steps(const KernelArgs& args, T factor) {
    std::size_t at = 0;
    for (; args.count - at >= step; at += step) {
      V<T> acc[step_vectors], next[step_vectors];
      const auto from = [&](std::size_t s) {
        return static_cast<const char*>(args.source[s]) + at * In::bytes;
      };
      prefetch(from(0));
      In::load(acc, from(0));
      for (std::size_t s = 1; s < args.sources; ++s) {
        prefetch(from(s));
        In::load(next, from(s));
        combine(acc, next);
      }
      finish(acc, factor);
      for (std::size_t d = 0; d < args.destinations; ++d) {
        Out::store(static_cast<char*>(args.destination[d]) + at * Out::bytes, acc);
      }
    }
    return at;
  }

  static __attribute__((noinline)) void rest(const KernelArgs& args, std::size_t at, T factor) {
    const std::size_t n = args.count - at;
    char buffer[step * sizeof(T)] = {};
    const auto read_rest = [&](std::size_t s) {
      const char* from = static_cast<const char*>(args.source[s]) + at * In::bytes;
      __builtin_memcpy(buffer, from, n * In::bytes);
      return buffer;
    };
    V<T> acc[step_vectors], next[step_vectors];
    In::load(acc, read_rest(0));
    for (std::size_t s = 1; s < args.sources; ++s) {
      In::load(next, read_rest(s));
      combine(acc, next);
    }
    finish(acc, factor);
    Out::store(buffer, acc);
    for (std::size_t d = 0; d < args.destinations; ++d) {
      __builtin_memcpy(static_cast<char*>(args.destination[d]) + at * Out::bytes, buffer,
                       n * Out::bytes);
    }
  }

  static void run(const KernelArgs& args) {
    const T factor = Op::template factor<T>(args.divisor);
    [[maybe_unused]] const OneNan guard;
    const auto is = [&](std::size_t sources, std::size_t destinations) {
      return fused && args.sources == sources && args.destinations == destinations;
    };
    const std::size_t at = is(2, 2)   ? fused_steps<2, 2>(args, factor)
                           : is(2, 1) ? fused_steps<2, 1>(args, factor)
                           : is(3, 3) ? fused_steps<3, 3>(args, factor)
                           : is(3, 1) ? fused_steps<3, 1>(args, factor)
                           : is(4, 4) ? fused_steps<4, 4>(args, factor)
                           : is(4, 1) ? fused_steps<4, 1>(args, factor)
                                      : other_steps(args, factor);
    if (at < args.count) rest(args, at, factor);
  }
};

template <class In, class Out = In>
Kernel float_kernel(const Reduction& what) {
  switch (what.op) {
    case ReduceOp::sum: return Loop<In, Out, Sum>::run;
    case ReduceOp::avg:
      if ((what.divisor & (what.divisor - 1)) == 0) return Loop<In, Out, AverageByPowerOfTwo>::run;
      return Loop<In, Out, Average>::run;
    case ReduceOp::min: return Loop<In, Out, Min>::run;
    case ReduceOp::max: return Loop<In, Out, Max>::run;
  }
  return nullptr;
}

// Processors have no vector division of integers. Sums wrap, so they are unsigned. Only a few
// elements are handled at a time, so that their divisions overlap with the next sums.
constexpr std::size_t integers = 4;
template <class T, class Wide>
TESSERA_INLINE void average_some(const KernelArgs& args, std::size_t at, std::size_t n) {
  std::uint64_t sums[integers] = {};
  T values[integers] = {};
  for (std::size_t s = 0; s < args.sources; ++s) {
    const char* const from = static_cast<const char*>(args.source[s]) + at * sizeof(T);
    __builtin_memcpy(values, from, n * sizeof(T));
    for (std::size_t i = 0; i < integers; ++i) sums[i] += static_cast<std::uint64_t>(values[i]);
  }
  const Wide divisor = static_cast<Wide>(args.divisor);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = static_cast<T>(static_cast<Wide>(sums[i]) / divisor);
  }
  for (std::size_t d = 0; d < args.destinations; ++d) {
    char* const to = static_cast<char*>(args.destination[d]) + at * sizeof(T);
    __builtin_memcpy(to, values, n * sizeof(T));
  }
}
template <class T, class Wide>
void average_integers(const KernelArgs& args) {
  std::size_t at = 0;
  for (; at + integers <= args.count; at += integers) average_some<T, Wide>(args, at, integers);
  if (at < args.count) average_some<T, Wide>(args, at, args.count - at);
}

template <class T, class Unsigned, class Wide>
Kernel integer_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return Loop<Plain<Unsigned>, Plain<Unsigned>, Sum>::run;
    case ReduceOp::avg: return average_integers<T, Wide>;
    case ReduceOp::min: return Loop<Plain<T>, Plain<T>, Min>::run;
    case ReduceOp::max: return Loop<Plain<T>, Plain<T>, Max>::run;
  }
  return nullptr;
}

}  // namespace

Kernel find_kernel(const Reduction& what) {
  const auto pair = [&](DType in, DType out) { return what.in == in && what.out == out; };
  if (pair(DType::f32, DType::f32)) return float_kernel<Plain<float>>(what);
  if (pair(DType::f64, DType::f64)) return float_kernel<Plain<double>>(what);
  if (pair(DType::bf16, DType::bf16)) return float_kernel<Bf16Pairs>(what);
  if (pair(DType::bf16, DType::f32)) return float_kernel<Bf16, Plain<float>>(what);
  if (pair(DType::f32, DType::bf16)) return float_kernel<Plain<float>, Bf16>(what);
  if (pair(DType::f16, DType::f16)) return float_kernel<F16>(what);
  if (pair(DType::f16, DType::f32)) return float_kernel<F16, Plain<float>>(what);
  if (pair(DType::f32, DType::f16)) return float_kernel<Plain<float>, F16>(what);
  if (pair(DType::i32, DType::i32)) {
    return integer_kernel<std::int32_t, std::uint32_t, std::int64_t>(what.op);
  }
  if (pair(DType::i64, DType::i64)) {
    return integer_kernel<std::int64_t, std::uint64_t, std::int64_t>(what.op);
  }
  if (pair(DType::u8, DType::u8)) {
    return integer_kernel<std::uint8_t, std::uint8_t, std::uint64_t>(what.op);
  }
  return nullptr;
}

}  // namespace tessera::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
