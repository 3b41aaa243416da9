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

// Returns the statistics of this thread's part of the first `classes` elements of a row.
template <class T, int V>
__device__ __forceinline__ Sum thread_sum(const T* x, unsigned classes) {
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr unsigned kStep = kLossThreads * kLossPacks;
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
  if (rest < classes) {
    const float last = wide(x[rest]);
    // NaN and infinity make the sum NaN; -infinity adds nothing.
    mine.join({fmaxf(last, kLowest), last < kLowest ? 0.0f : last - last + 1.0f});
  }
  return mine;
}

// Replaces the elements of a row by exp(x - log_sum), and those from `classes` on by zero.
template <class T, int V>
__device__ __forceinline__ void write_softmax(T* x, unsigned classes, unsigned cols,
                                              float log_sum) {
  constexpr unsigned kStep = kLossThreads * kLossPacks;
  const unsigned packs = classes / V;
  const float scaled = log_sum * 1.4426950408889634f;
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
  const unsigned rest = packs * V + threadIdx.x;
  if (rest < classes) x[rest] = narrow<T>(exp_above<T>(wide(x[rest]), log_sum, scaled));
  for (unsigned c = classes + threadIdx.x; c < cols; c += kLossThreads) x[c] = narrow<T>(0.0f);
}

template <class T, int V>
__device__ __forceinline__ void write_zeros(T* x, unsigned cols) {
  const T zero = narrow<T>(0.0f);
  for (unsigned c = threadIdx.x; c < cols / V; c += kLossThreads) {
    Pack<T, V>::zero().store(x + c * V);
  }
  for (unsigned c = cols / V * V + threadIdx.x; c < cols; c += kLossThreads) x[c] = zero;
}

template <class T, int V>
__global__ void __launch_bounds__(kLossThreads, kSmThreads / kLossThreads)
    cross_entropy_kernel(unsigned cols, unsigned classes, const std::int64_t* targets, T* logits,
                         float* losses, int* bad) {
  __shared__ Sum shared[32];
  const std::size_t row = blockIdx.x;
  const std::int64_t target = targets[row];
  T* x = logits + row * cols;
  if (target < 0 || target >= static_cast<std::int64_t>(classes)) {
    write_zeros<T, V>(x, cols);
    if (threadIdx.x == 0) {
      losses[row] = 0;
      if (target != -1 && bad != nullptr) *bad = 1 + static_cast<int>(row);
    }
    return;
  }
  const float chosen = wide(x[target]);
  // After block_join(), every thread has read the target's logit.
  const Sum all = block_join(thread_sum<T, V>(x, classes), shared);
  write_softmax<T, V>(x, classes, cols, all.top + logf(all.sum));
  __syncthreads();
  if (threadIdx.x == 0) {
    const float loss = all.top - chosen + logf(all.sum);
    losses[row] = loss;
    // Not p - 1, which loses precision where p is close to 1.
    x[target] = narrow<T>(expm1f(-loss));
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kLossThreads, kSmThreads / kLossThreads)
    shard_statistics_kernel(ShardCrossEntropy in, const T* logits, float* top, float* sum,
                            float* chosen, int* bad) {
  __shared__ Sum shared[32];
  const std::size_t row = blockIdx.x;
  const T* x = logits + row * in.cols;
  const Sum all = block_join(thread_sum<T, V>(x, static_cast<unsigned>(in.classes)), shared);
  if (threadIdx.x != 0) return;
  const std::int64_t target = in.targets[row], own = target - in.first;
  top[row] = all.top;
  sum[row] = all.sum;
  const bool here = target >= 0 && target < in.all_classes && own >= 0 &&
                    own < static_cast<std::int64_t>(in.classes);
  chosen[row] = here ? wide(x[own]) : 0.0f;
  if ((target < -1 || target >= in.all_classes) && bad != nullptr) {
    *bad = 1 + static_cast<int>(row);
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kLossThreads, kSmThreads / kLossThreads)
    shard_gradient_kernel(ShardCrossEntropy in, T* logits, const float* log_sum) {
  const std::size_t row = blockIdx.x;
  const std::int64_t target = in.targets[row], own = target - in.first;
  T* x = logits + row * in.cols;
  const unsigned cols = static_cast<unsigned>(in.cols), classes = static_cast<unsigned>(in.classes);
  if (target < 0 || target >= in.all_classes) return write_zeros<T, V>(x, cols);
  const bool here = own >= 0 && own < static_cast<std::int64_t>(in.classes);
  const float chosen = here ? wide(x[own]) : 0.0f;
  __syncthreads();  // before the logit is overwritten
  write_softmax<T, V>(x, classes, cols, log_sum[row]);
  __syncthreads();
  if (threadIdx.x == 0 && here) x[own] = narrow<T>(expm1f(chosen - log_sum[row]));
}

void check_columns(std::size_t classes, std::size_t cols) {
  if (classes <= cols && cols <= 0x7fffffffu) return;
  throw UsageError("cross_entropy: " + std::to_string(classes) + " classes in rows of " +
                   std::to_string(cols) +
                   " columns: a row must have a column for every class and fewer than 2^31 "
                   "columns.");
}

}  // namespace

void cross_entropy(const CrossEntropy& in, void* logits, float* losses, int* bad, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  check_columns(in.classes, in.cols);
  with_type(in.type, "cross_entropy", [&]<class T>() {
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(logits);
    const auto kernel = whole ? &cross_entropy_kernel<T, kWide<T>> : &cross_entropy_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(in.rows), kLossThreads, 0, native(stream)>>>(
        static_cast<unsigned>(in.cols), static_cast<unsigned>(in.classes), in.targets,
        static_cast<T*>(logits), losses, bad);
    check_launch("cross_entropy", in.rows, in.cols);
  });
}

void shard_statistics(const ShardCrossEntropy& in, const void* logits, float* top, float* sum,
                      float* chosen, int* bad, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  check_columns(in.classes, in.cols);
  with_type(in.type, "cross_entropy", [&]<class T>() {
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(logits);
    const auto kernel =
        whole ? &shard_statistics_kernel<T, kWide<T>> : &shard_statistics_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(in.rows), kLossThreads, 0, native(stream)>>>(
        in, static_cast<const T*>(logits), top, sum, chosen, bad);
    check_launch("shard_statistics", in.rows, in.cols);
  });
}

void shard_gradient(const ShardCrossEntropy& in, void* logits, const float* log_sum,
                    Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  check_columns(in.classes, in.cols);
  with_type(in.type, "cross_entropy", [&]<class T>() {
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(logits);
    const auto kernel = whole ? &shard_gradient_kernel<T, kWide<T>> : &shard_gradient_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(in.rows), kLossThreads, 0, native(stream)>>>(
        in, static_cast<T*>(logits), log_sum);
    check_launch("shard_gradient", in.rows, in.cols);
  });
}

}  // namespace tessera::kernels::cuda
