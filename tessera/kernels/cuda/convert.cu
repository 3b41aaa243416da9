#include "tessera/kernels/cuda/convert.h"

#include "tessera/kernels/cuda/device.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int kConvertThreads = 256;
constexpr int kConvertAtOnce = 8;    // elements: 16 bytes of a 16-bit type
constexpr int kConvertUnrolled = 2;  // groups of that size in flight per thread

template <class T>
__device__ __forceinline__ void store_eight(T* to, const float (&x)[kConvertAtOnce]) {
  constexpr int W = kWide<T>;
#pragma unroll
  for (int i = 0; i < kConvertAtOnce; i += W) {
    float part[W];
#pragma unroll
    for (int j = 0; j < W; ++j) part[j] = x[i + j];
    Pack<T, W>::of(part).store(to + i);
  }
}

// The first threads convert the elements after the last eight one by one.
template <class F, class T>
__global__ void __launch_bounds__(kConvertThreads)
    convert_kernel(const F* from, T* to, std::size_t eights, unsigned rest) {
  const std::size_t first =
      std::size_t{blockIdx.x} * kConvertThreads * kConvertUnrolled + threadIdx.x;
  float x[kConvertUnrolled][kConvertAtOnce];
#pragma unroll
  for (int u = 0; u < kConvertUnrolled; ++u) {
    const std::size_t at = first + static_cast<std::size_t>(u) * kConvertThreads;
    if (at < eights) load_eight(from + at * kConvertAtOnce, x[u]);
  }
#pragma unroll
  for (int u = 0; u < kConvertUnrolled; ++u) {
    const std::size_t at = first + static_cast<std::size_t>(u) * kConvertThreads;
    if (at < eights) store_eight(to + at * kConvertAtOnce, x[u]);
  }
  if (first < rest) {
    const std::size_t at = eights * kConvertAtOnce + first;
    to[at] = narrow<T>(wide(from[at]));
  }
}

template <class F, class T>
__global__ void __launch_bounds__(kConvertThreads)
    convert_singly_kernel(const F* from, T* to, std::size_t count) {
  const std::size_t at = std::size_t{blockIdx.x} * kConvertThreads + threadIdx.x;
  if (at < count) to[at] = narrow<T>(wide(from[at]));
}

}  // namespace

void convert(const Conversion& args, Stream stream) {
  if (args.count == 0) return;
  const bool aligned = is_aligned(args.from) && is_aligned(args.to);
  with_type(args.from_type, "convert", [&]<class F>() {
    with_type(args.to_type, "convert", [&]<class T>() {
      const F* from = static_cast<const F*>(args.from);
      T* to = static_cast<T*>(args.to);
      if (aligned) {
        const std::size_t eights = args.count / kConvertAtOnce;
        const auto rest = static_cast<unsigned>(args.count % kConvertAtOnce);
        const std::size_t blocks =
            divide_up(eights > 0 ? eights : 1, std::size_t{kConvertThreads} * kConvertUnrolled);
        convert_kernel<F, T><<<static_cast<unsigned>(blocks), kConvertThreads, 0, native(stream)>>>(
            from, to, eights, rest);
      } else {
        convert_singly_kernel<F, T><<<static_cast<unsigned>(divide_up(args.count, kConvertThreads)),
                                      kConvertThreads, 0, native(stream)>>>(from, to, args.count);
      }
      check_launch("convert", 1, args.count);
    });
  });
}

}  // namespace tessera::kernels::cuda
