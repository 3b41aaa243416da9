#include "tessera/kernels/cuda/fp8.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <cfloat>

#include "tessera/kernels/cuda/device.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEight = 8;                     // elements per thread and row
constexpr int kUnrolled = 4;                  // groups of that size in flight per thread
constexpr unsigned kSide = 128;               // rows and columns of a tile
constexpr unsigned kFourRows = 4;             // rows per thread and pass
constexpr unsigned kAcross = kSide / kEight;  // threads along the columns
constexpr unsigned kPassRows = kThreads / kAcross * kFourRows;  // rows of a pass
constexpr unsigned kPasses = kSide / kPassRows;

template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const T* x, std::size_t count, float* largest) {
  const std::size_t eights = count / kEight, step = std::size_t{gridDim.x} * kThreads;
  float top = 0;
  for (std::size_t at = std::size_t{blockIdx.x} * kThreads + threadIdx.x; at < eights;
       at += step * kUnrolled) {
    float v[kUnrolled][kEight] = {};
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const std::size_t i = at + u * step;
      if (i < eights) load_eight(x + i * kEight, v[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
#pragma unroll
      for (int i = 0; i < kEight; ++i) top = fmaxf(top, fabsf(v[u][i]));
    }
  }
  const std::size_t rest = eights * kEight + threadIdx.x;
  if (blockIdx.x == 0 && rest < count) top = fmaxf(top, fabsf(wide(x[rest])));
  raise_largest<T>(largest, top);
}

struct Conversion8 {
  std::size_t rows, cols, padded_rows;
  const float* largest;
  float limit;  // largest number of the type
  std::uint8_t* out;
  std::uint8_t* transposed;
  float* factor;
};

template <__nv_fp8_interpretation_t Kind>
__device__ __forceinline__ std::uint32_t four(const float* x, float scale) {
  const std::uint32_t low =
      __nv_cvt_float2_to_fp8x2({x[0] * scale, x[1] * scale}, __NV_SATFINITE, Kind);
  const std::uint32_t high =
      __nv_cvt_float2_to_fp8x2({x[2] * scale, x[3] * scale}, __NV_SATFINITE, Kind);
  return low | high << 16;
}

// Replaces four words, each four bytes of a row, by four words, each four bytes of a column.
__device__ __forceinline__ void transpose_bytes(std::uint32_t (&w)[4]) {
  const std::uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
  const std::uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410);
  w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410);
  w[3] = __byte_perm(c, d, 0x7632);
}

// A block converts a tile. A thread reads 4 rows of 8 columns at a time; the transposed tile is
// collected in shared memory, in words of 4 rows, so that whole lines of 128 bytes are written.
// Words are permuted within their line (by XOR) to avoid bank conflicts.
template <class T, __nv_fp8_interpretation_t Kind, bool Rows, bool Transposed>
__global__ void __launch_bounds__(kThreads) to_fp8_kernel(const T* x, Conversion8 in) {
  __shared__ uint4 lines[Transposed ? kSide * kSide / 16 : 1];
  const float largest = *in.largest;
  // All zeros, or so small that the quotient overflows: any finite scale gives zeros or is exact.
  const float scale = largest > 0 ? fminf(in.limit / largest, FLT_MAX) : 1.0f;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    *in.factor = largest > 0 ? largest / in.limit : 1.0f;
  }
  const unsigned tx = threadIdx.x % kAcross, ty = threadIdx.x / kAcross;
  const std::size_t column = std::size_t{blockIdx.x} * kSide + tx * kEight;
  const std::size_t top = std::size_t{blockIdx.y} * kSide;
#pragma unroll
  for (unsigned pass = 0; pass < kPasses; ++pass) {
    const unsigned first = pass * kPassRows + ty * kFourRows;  // row within the tile
    float v[kFourRows][kEight] = {};
#pragma unroll
    for (unsigned r = 0; r < kFourRows; ++r) {
      const std::size_t row = top + first + r;
      if (row < in.rows && column < in.cols) load_eight(x + row * in.cols + column, v[r]);
    }
    std::uint32_t low[kFourRows], high[kFourRows];
#pragma unroll
    for (unsigned r = 0; r < kFourRows; ++r) {
      low[r] = four<Kind>(v[r], scale);
      high[r] = four<Kind>(v[r] + 4, scale);
      const std::size_t row = top + first + r;
      if (Rows && row < in.rows && column < in.cols) {
        *reinterpret_cast<uint2*>(in.out + row * in.cols + column) = {low[r], high[r]};
      }
    }
    if constexpr (Transposed) {
      transpose_bytes(low);
      transpose_bytes(high);
      auto* words = reinterpret_cast<std::uint32_t*>(lines);
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const unsigned at = (first / kFourRows) ^ (2 * tx);
        words[(tx * kEight + j) * (kSide / 4) + at] = low[j];
        words[(tx * kEight + 4 + j) * (kSide / 4) + at] = high[j];
      }
    }
  }
  if constexpr (Transposed) {
    __syncthreads();
#pragma unroll
    for (unsigned i = threadIdx.x; i < kSide * kSide / 16; i += kThreads) {
      const unsigned c = i / (kSide / 16), quad = i % (kSide / 16), turn = c / kEight;
      uint4 v = lines[c * (kSide / 16) + (quad ^ (turn / 2))];
      if (turn % 2 != 0) v = {v.z, v.w, v.x, v.y};
      const std::size_t to = std::size_t{blockIdx.x} * kSide + c, row = top + quad * 16;
      if (to < in.cols && row < in.padded_rows) {
        *reinterpret_cast<uint4*>(in.transposed + to * in.padded_rows + row) = v;
      }
    }
  }
}

template <class T, __nv_fp8_interpretation_t Kind>
void start_to_fp8(const T* x, const Conversion8& in, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(divide_up(in.cols, kSide)),
                  static_cast<unsigned>(divide_up(in.padded_rows, kSide)));
  const auto kernel = in.out == nullptr          ? &to_fp8_kernel<T, Kind, false, true>
                      : in.transposed == nullptr ? &to_fp8_kernel<T, Kind, true, false>
                                                 : &to_fp8_kernel<T, Kind, true, true>;
  kernel<<<grid, kThreads, 0, stream>>>(x, in);
  check_launch("to_fp8", in.rows, in.cols);
}

}  // namespace

void largest_magnitude(const Magnitudes& in, float* largest, Stream stream) {
  if (cudaMemsetAsync(largest, 0, sizeof(float), native(stream)) != cudaSuccess) {
    check_launch("largest_magnitude", 1, in.count);
  }
  if (in.count == 0) return;
  if (!is_aligned(in.x)) throw UsageError("largest_magnitude: x must be 16-byte aligned.");
  with_type(in.type, "largest_magnitude", [&]<class T>() {
    const std::size_t blocks =
        std::min(divide_up(in.count, std::size_t{kThreads} * kEight * kUnrolled), sm_count() * 8);
    largest_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(
        static_cast<const T*>(in.x), in.count, largest);
    check_launch("largest_magnitude", 1, in.count);
  });
}

void to_fp8(const ToFp8& in, void* out, void* transposed, float* factor, Stream stream) {
  if (in.rows == 0 || in.cols == 0 || (out == nullptr && transposed == nullptr)) return;
  if (in.cols % 16 != 0 || !is_aligned(in.x) || !is_aligned(out) || !is_aligned(transposed)) {
    throw UsageError("to_fp8: rows of " + std::to_string(in.cols) +
                     " elements: they must be a multiple of 16, at 16-byte aligned addresses.");
  }
  const bool gradient = in.to == DType::f8_e5m2;
  if (!gradient && in.to != DType::f8_e4m3) {
    throw UsageError(std::string("to_fp8: cannot convert to ") + name(in.to) +
                     ". Use f8_e4m3 or f8_e5m2.");
  }
  const Conversion8 args{in.rows,
                         in.cols,
                         transposed == nullptr ? in.rows : fp8_rows(in.rows),
                         in.largest,
                         gradient ? 57344.0f : 448.0f,
                         static_cast<std::uint8_t*>(out),
                         static_cast<std::uint8_t*>(transposed),
                         factor};
  with_type(in.type, "to_fp8", [&]<class T>() {
    const T* x = static_cast<const T*>(in.x);
    gradient ? start_to_fp8<T, __NV_E5M2>(x, args, native(stream))
             : start_to_fp8<T, __NV_E4M3>(x, args, native(stream));
  });
}

}  // namespace tessera::kernels::cuda
