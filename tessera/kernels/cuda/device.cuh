// Building blocks of the CUDA kernels: 16-byte accesses, sums within a row, and dispatch on the
// type at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "tessera/core/errors.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float wide(f16 x) { return __half2float(x); }
template <class T>
__device__ __forceinline__ T narrow(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

// Two elements in one word, converted to and from floats.
template <class T>
__device__ __forceinline__ float2 wide_pair(std::uint32_t word) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
}
template <class T>
__device__ __forceinline__ std::uint32_t narrow_pair(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

// Maximum number of threads per SM of the architecture that is being compiled for.
#if defined(__CUDA_ARCH__) && \
    ((__CUDA_ARCH__ >= 860 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1100)
constexpr int kSmThreads = 1536;
#else
constexpr int kSmThreads = 2048;
#endif

// Number of elements in 16 bytes.
template <class T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

// V elements as stored in memory: 16 bytes of them, or a single one.
template <class T, int V>
struct Pack {
  static_assert(V == kWide<T>);
  uint4 words;

  static __device__ __forceinline__ Pack zero() { return {uint4{0, 0, 0, 0}}; }
  static __device__ __forceinline__ Pack load(const T* from) {
    return {*reinterpret_cast<const uint4*>(from)};
  }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = words; }
  __device__ __forceinline__ void get(float (&x)[V]) const {
    const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (V == 4) {
        x[i] = __uint_as_float(w[i]);
      } else {
        const float2 pair = wide_pair<T>(w[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
      }
    }
  }
  // Hides the value from the compiler, so that it unpacks the words again at the next use instead
  // of keeping the floats in registers.
  __device__ __forceinline__ void keep_packed() {
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  }
  static __device__ __forceinline__ Pack of(const float (&x)[V]) {
    std::uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (V == 4) {
        w[i] = __float_as_uint(x[i]);
      } else {
        w[i] = narrow_pair<T>(x[2 * i], x[2 * i + 1]);
      }
    }
    return {uint4{w[0], w[1], w[2], w[3]}};
  }
};
template <class T>
struct Pack<T, 1> {
  T value;

  static __device__ __forceinline__ Pack zero() { return {narrow<T>(0.0f)}; }
  static __device__ __forceinline__ Pack load(const T* from) { return {*from}; }
  __device__ __forceinline__ void store(T* to) const { *to = value; }
  __device__ __forceinline__ void get(float (&x)[1]) const { x[0] = wide(value); }
  static __device__ __forceinline__ Pack of(const float (&x)[1]) { return {narrow<T>(x[0])}; }
};

// Loads eight elements from a 16-byte aligned address.
template <class T>
__device__ __forceinline__ void load_eight(const T* from, float (&x)[8]) {
  constexpr int W = kWide<T>;
#pragma unroll
  for (int i = 0; i < 8; i += W) {
    float part[W];
    Pack<T, W>::load(from + i).get(part);
#pragma unroll
    for (int j = 0; j < W; ++j) x[i + j] = part[j];
  }
}

// Vector over the columns (weights, bias) whose type is known at run time. It is small and read by
// every block, so it comes from the cache. Null data reads as zeros.
struct Columnwise {
  const void* data = nullptr;
  DType type = DType::f32;

  template <int V>
  __device__ __forceinline__ void get(std::size_t column, float (&x)[V]) const {
    if (data == nullptr) {
#pragma unroll
      for (int i = 0; i < V; ++i) x[i] = 0;
    } else if (type == DType::f32) {
      get_as<float>(column, x);
    } else if (type == DType::bf16) {
      get_as<bf16>(column, x);
    } else {
      get_as<f16>(column, x);
    }
  }

  // get() for data that is not null and has type T.
  template <class T, int V>
  __device__ __forceinline__ void get_as(std::size_t column, float (&x)[V]) const {
    const T* from = static_cast<const T*>(data) + column;
    if constexpr (V == 1) {
      x[0] = wide(*from);
    } else {
      constexpr int W = V < kWide<T> ? V : kWide<T>;  // f32 with 16-bit packs: two loads
      if constexpr (W == kWide<T>) {
#pragma unroll
        for (int i = 0; i < V; i += W) {
          float part[W];
          Pack<T, W>::load(from + i).get(part);
#pragma unroll
          for (int j = 0; j < W; ++j) x[i + j] = part[j];
        }
      } else {  // four 16-bit elements
        const uint2 words = *reinterpret_cast<const uint2*>(from);
        const float2 low = wide_pair<T>(words.x), high = wide_pair<T>(words.y);
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
      }
    }
  }
};

// Returns the sum over a warp, in all its lanes.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}

// Returns the sum over the G threads of a row, in all of them. Writes G / 32 floats to `shared`,
// which the threads must not use otherwise until their next barrier.
template <int G>
__device__ __forceinline__ float group_sum(float x, float* shared) {
  x = warp_sum(x);
  if constexpr (G > 32) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < G / 32; ++i) x += shared[i];
  }
  return x;
}

// Raises *to, which is not negative, to the largest of the active threads' `x`, rounded to T. Null:
// does nothing. Reads first, because most values are smaller and atomic operations on one address
// take turns.
template <class T>
__device__ __forceinline__ void raise_largest(float* to, float x) {
  if (to == nullptr) return;
  const unsigned active = __activemask();
  // The bits of floats that are not negative have the order of their values.
  const unsigned bits = __reduce_max_sync(active, __float_as_uint(wide(narrow<T>(x))));
  const bool leads = threadIdx.x % 32 == static_cast<unsigned>(__ffs(static_cast<int>(active)) - 1);
  auto* place = reinterpret_cast<unsigned*>(to);
  if (leads && bits > *const_cast<volatile unsigned*>(place)) atomicMax(place, bits);
}

// Starts copying 16 bytes to shared memory and returns immediately.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most the N latest groups of copies of this thread are pending.
template <int N>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// exp and 1 / (1 + exp(-x)): to full fp32 precision for f32, to about 1e-6 for 16-bit types, which
// are rounded anyway.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (sizeof(T) == 4) {
    return expf(x);
  } else {
    return __expf(x);
  }
}
template <class T>
__device__ __forceinline__ float sigmoid_for(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + __expf(-x)));
    return result;
  }
}

// Calls f.operator()<T>() with the C++ type of `type`.
template <class F>
void with_type(DType type, const char* kernel, F&& f) {
  switch (type) {
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<bf16>();
    case DType::f16: return f.template operator()<f16>();
    default:
      throw UsageError(std::string("CUDA kernel ") + kernel + ": element type " + name(type) +
                       " is not supported. Use f32, bf16 or f16.");
  }
}

inline bool is_aligned(const void* pointer, std::size_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

inline void check_launch(const char* kernel, std::size_t rows, std::size_t cols) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  throw Error(std::string("Launching the CUDA kernel ") + kernel + " on [" + std::to_string(rows) +
              ", " + std::to_string(cols) + "] failed: " + cudaGetErrorString(error));
}

// [Note: bits and cards] The order of additions must not depend on the card. So a kernel that adds
// over rows makes a number of partial sums that follows from the sizes and from constants:
// kSumBlocks is their unit. It equals the number of SMs of an H100 or H200, which such kernels
// therefore fill exactly; cards with fewer SMs run the blocks in turns. Grids of kernels whose
// results do not depend on the grid use sm_count().
constexpr std::size_t kSumBlocks = 132;

// Returns the number of SMs of this thread's device.
inline std::size_t sm_count() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    cudaGetLastError();
    throw Error("The number of multiprocessors of the GPU cannot be read.");
  }
  return static_cast<std::size_t>(count);
}

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace tessera::kernels::cuda
