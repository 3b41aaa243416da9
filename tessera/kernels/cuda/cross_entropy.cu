#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/layers.h"

namespace tessera::kernels::cuda {
namespace {

// One or two blocks of this size fill an SM. The rows that all blocks process stay in the L2 cache
// until they are read the second time.
constexpr int kLossThreads = 1024;
constexpr int kLossPacks = 2;  // packs in flight per thread

// Maximum so far, and the sum of exp(x - top). `top` is never -infinity, because -infinity minus
// itself is NaN.
constexpr float kLowest = -1e38f;
struct Sum {
  float top = kLowest, sum = 0;

  __device__ __forceinline__ void join(Sum other) {
    const float both = fmaxf(top, other.top);
    sum = sum * __expf(top - both) + other.sum * __expf(other.top - both);
    top = both;
  }
};

__device__ __forceinline__ Sum block_join(Sum mine, Sum* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    Sum other;
    other.top = __shfl_xor_sync(0xffffffffu, mine.top, distance);
    other.sum = __shfl_xor_sync(0xffffffffu, mine.sum, distance);
    mine.join(other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  // Each warp reduces the rest redundantly: 32 warps, 32 lanes.
  static_assert(kLossThreads == 32 * 32);
  mine = shared[threadIdx.x % 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    Sum other;
    other.top = __shfl_xor_sync(0xffffffffu, mine.top, distance);
    other.sum = __shfl_xor_sync(0xffffffffu, mine.sum, distance);
    mine.join(other);
  }
  return mine;
}

// Returns exp(x - top) as exp2(x · log2(e) - scaled_top): one multiply-add and one exponential. f32
// subtracts first, for precision.
template <class T>
__device__ __forceinline__ float exp_above(float x, float top, float scaled_top) {
  constexpr float kLog2E = 1.4426950408889634f;
  if constexpr (sizeof(T) == 4) {
    return __expf(x - top);
  } else {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(fmaf(x, kLog2E, -scaled_top)));
    return result;
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kLossThreads, kSmThreads / kLossThreads)
    cross_entropy_kernel(unsigned cols, unsigned classes, const std::int64_t* targets, T* logits,
                         float* losses, int* bad) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr unsigned kStep = kLossThreads * kLossPacks;
  __shared__ Sum shared[32];
  const std::size_t row = blockIdx.x;
  const std::int64_t target = targets[row];
  const bool counts = target >= 0 && target < static_cast<std::int64_t>(classes);
  T* x = logits + row * cols;
  if (!counts) {
    const T zero = narrow<T>(0.0f);
    for (unsigned c = threadIdx.x; c < cols / V; c += kLossThreads) {
      Pack<T, V>::zero().store(x + c * V);
    }
    for (unsigned c = cols / V * V + threadIdx.x; c < cols; c += kLossThreads) x[c] = zero;
    if (threadIdx.x == 0) {
      losses[row] = 0;
      if (target != -1 && bad != nullptr) *bad = 1 + static_cast<int>(row);
    }
    return;
  }

  const float chosen = wide(x[target]);
  const unsigned packs = classes / V;  // followed by fewer than V single elements
  Sum mine;
  for (unsigned first = threadIdx.x; first < packs; first += kStep) {
    Pack<T, V> p[kLossPacks];
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      const unsigned at = first + u * kLossThreads;
      if (at < packs) p[u] = Pack<T, V>::load(x + at * V);
    }
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      if (first + u * kLossThreads >= packs) break;
      float v[V];
      p[u].get(v);
      float top = mine.top;
#pragma unroll
      for (int i = 0; i < V; ++i) top = fmaxf(top, v[i]);
      float sum = mine.sum * __expf(mine.top - top);
      const float scaled = top * kLog2E;
#pragma unroll
      for (int i = 0; i < V; ++i) sum += exp_above<T>(v[i], top, scaled);
      mine.top = top;
      mine.sum = sum;
    }
  }
  const unsigned rest = packs * V + threadIdx.x;
  float last = 0;
  if (rest < classes) {
    last = wide(x[rest]);
    // NaN and infinity make the sum NaN; -infinity adds nothing.
    mine.join({fmaxf(last, kLowest), last < kLowest ? 0.0f : last - last + 1.0f});
  }
  mine = block_join(mine, shared);  // after this, every thread has read the target's logit

  const float log_sum = mine.top + logf(mine.sum), scaled = log_sum * kLog2E;
  for (unsigned first = threadIdx.x; first < packs; first += kStep) {
    Pack<T, V> p[kLossPacks];
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      const unsigned at = first + u * kLossThreads;
      if (at < packs) p[u] = Pack<T, V>::load(x + at * V);
    }
#pragma unroll
    for (int u = 0; u < kLossPacks; ++u) {
      const unsigned at = first + u * kLossThreads;
      if (at >= packs) break;
      float v[V];
      p[u].get(v);
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = exp_above<T>(v[i], log_sum, scaled);
      Pack<T, V>::of(v).store(x + at * V);
    }
  }
  if (rest < classes) x[rest] = narrow<T>(exp_above<T>(last, log_sum, scaled));
  for (unsigned c = classes + threadIdx.x; c < cols; c += kLossThreads) x[c] = narrow<T>(0.0f);
  __syncthreads();
  if (threadIdx.x == 0) {
    const float loss = mine.top - chosen + logf(mine.sum);
    losses[row] = loss;
    // Not p - 1, which loses precision where p is close to 1.
    x[target] = narrow<T>(expm1f(-loss));
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& in, void* logits, float* losses, int* bad, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  if (in.classes > in.cols || in.cols > 0x7fffffffu) {
    throw UsageError("cross_entropy: " + std::to_string(in.classes) + " classes in rows of " +
                     std::to_string(in.cols) +
                     " columns: a row must have a column for every class and fewer than 2^31 "
                     "columns.");
  }
  with_type(in.type, "cross_entropy", [&]<class T>() {
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(logits);
    const auto kernel = whole ? &cross_entropy_kernel<T, kWide<T>> : &cross_entropy_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(in.rows), kLossThreads, 0, native(stream)>>>(
        static_cast<unsigned>(in.cols), static_cast<unsigned>(in.classes), in.targets,
        static_cast<T*>(logits), losses, bad);
    check_launch("cross_entropy", in.rows, in.cols);
  });
}

}  // namespace tessera::kernels::cuda
