// Rows of mixtures of experts: their order, and the operations on them.
#include <algorithm>
#include <cmath>

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/experts.h"

namespace tessera::kernels::cuda {
namespace {

// Threads of a block that processes one row.
constexpr int kRowThreads = 128;

// Pairs of one block of a sort, which one warp places in their order.
constexpr std::size_t kSortTile = 1024;

// Pairs with a negative expert have the last bin.
__device__ __forceinline__ int bin_of(std::int32_t expert, int experts) {
  return expert < 0 ? experts : expert;
}

__global__ void count_tiles_kernel(SortPairs in, std::int32_t* tiles) {
  extern __shared__ std::int32_t counts[];
  const int experts = static_cast<int>(in.experts), bins = experts + 1;
  for (int e = static_cast<int>(threadIdx.x); e < bins; e += static_cast<int>(blockDim.x)) {
    counts[e] = 0;
  }
  __syncthreads();
  const std::size_t begin = blockIdx.x * kSortTile;
  const std::size_t end = min(begin + kSortTile, in.pairs);
  for (std::size_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    atomicAdd(&counts[bin_of(in.chosen[i], experts)], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < bins; e += static_cast<int>(blockDim.x)) {
    tiles[blockIdx.x * static_cast<std::size_t>(bins) + e] = counts[e];
  }
}

// Replaces the counts of each bin by the number of its pairs in earlier tiles, and writes the first
// row of each bin. One block; a warp processes a bin.
__global__ void first_rows_kernel(std::int32_t* tiles, std::size_t count, int experts,
                                  std::int64_t* counts, std::int32_t* first) {
  __shared__ std::int32_t totals[kMaxExperts + 1];
  const int lane = static_cast<int>(threadIdx.x % 32), warps = static_cast<int>(blockDim.x / 32);
  const int bins = experts + 1;
  for (int e = static_cast<int>(threadIdx.x / 32); e < bins; e += warps) {
    std::int32_t before = 0;
    for (std::size_t base = 0; base < count; base += 32) {
      const std::size_t tile = base + lane;
      std::int32_t* const place = tiles + tile * bins + e;
      const std::int32_t own = tile < count ? *place : 0;
      std::int32_t sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const std::int32_t other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (tile < count) *place = before + sum - own;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) totals[e] = before;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::int32_t row = 0;
  for (int e = 0; e < bins; ++e) {
    first[e] = row;
    row += totals[e];
    if (e < experts) counts[e] = totals[e];
  }
}

__global__ void place_pairs_kernel(SortPairs in, const std::int32_t* tiles,
                                   const std::int32_t* first, std::int32_t* order,
                                   std::int32_t* slots) {
  extern __shared__ std::int32_t next[];  // row of the next pair of each bin
  const int experts = static_cast<int>(in.experts), bins = experts + 1;
  const int lane = static_cast<int>(threadIdx.x);
  for (int e = lane; e < bins; e += 32) {
    next[e] = first[e] + tiles[blockIdx.x * static_cast<std::size_t>(bins) + e];
  }
  __syncwarp();
  const std::size_t begin = blockIdx.x * kSortTile;
  const std::size_t end = min(begin + kSortTile, in.pairs);
  for (std::size_t base = begin; base < end; base += 32) {
    const std::size_t i = base + lane;
    const std::int32_t expert = i < end ? in.chosen[i] : 0;
    const int bin = i < end ? bin_of(expert, experts) : bins;
    const unsigned same = __match_any_sync(0xffffffffu, bin);
    const int earlier = __popc(same & ((1u << lane) - 1));
    std::int32_t row = 0;
    if (i < end) row = next[bin] + earlier;
    __syncwarp();
    if (i < end && earlier == 0) next[bin] += __popc(same);
    __syncwarp();
    if (i < end) {
      order[row] = static_cast<std::int32_t>(i);
      slots[i] = expert < 0 ? -1 : row;
    }
  }
}

__global__ void order_pairs_kernel(const std::int32_t* slots, std::size_t pairs,
                                   std::int32_t* order) {
  const std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  if (i < pairs && slots[i] >= 0) order[slots[i]] = static_cast<std::int32_t>(i);
}

// Rows that a block copies at once, so that each thread has several loads under way.
constexpr int kGatherRows = 4;

template <class T, int V>
__global__ void __launch_bounds__(kRowThreads) gather_rows_kernel(GatherRows in, T* out) {
  const std::size_t first = blockIdx.x * static_cast<std::size_t>(kGatherRows);
  const T* from[kGatherRows];
#pragma unroll
  for (int i = 0; i < kGatherRows; ++i) {
    const std::size_t row = min(first + i, in.rows - 1);
    from[i] = static_cast<const T*>(in.x) + static_cast<std::size_t>(in.source[row]) * in.cols;
  }
  for (std::size_t c = threadIdx.x * V; c < in.cols; c += kRowThreads * V) {
    Pack<T, V> packs[kGatherRows];
#pragma unroll
    for (int i = 0; i < kGatherRows; ++i) packs[i] = Pack<T, V>::load(from[i] + c);
#pragma unroll
    for (int i = 0; i < kGatherRows; ++i) {
      if (first + i < in.rows) packs[i].store(out + (first + i) * in.cols + c);
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kRowThreads) combine_rows_kernel(CombineRows in, T* out) {
  const std::size_t token = blockIdx.x;
  const std::int32_t* const slots = in.slots + token * in.per_token;
  const T* const rows = static_cast<const T*>(in.rows);
  for (std::size_t c = threadIdx.x * V; c < in.cols; c += kRowThreads * V) {
    float sum[V] = {};
    for (std::size_t i = 0; i < in.per_token; ++i) {
      const std::int32_t slot = slots[i];
      if (slot < 0) continue;
      float v[V];
      Pack<T, V>::load(rows + static_cast<std::size_t>(slot) * in.cols + c).get(v);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += v[j];
    }
    Pack<T, V>::of(sum).store(out + token * in.cols + c);
  }
}

// Value and slope of an activation function.
struct At {
  float value, slope;
};
template <class T>
__device__ __forceinline__ At activation_at(Activation activation, float x) {
  switch (activation) {
    case Activation::silu: {
      const float gate = sigmoid_for<T>(x);
      return {x * gate, gate * (1.0f + x * (1.0f - gate))};
    }
    case Activation::gelu_tanh: {
      constexpr float scale = 1.5957691216057308f, cubic = 0.044715f;  // 2 · sqrt(2 / pi)
      const float gate = sigmoid_for<T>(scale * x * (1.0f + cubic * x * x));
      // Far from 0 the second term of the slope vanishes, provided that the square does not
      // overflow.
      const float near = fminf(fmaxf(x, -100.0f), 100.0f);
      const float inner = scale * (1.0f + 3.0f * cubic * near * near);
      return {x * gate, gate + near * gate * (1.0f - gate) * inner};
    }
    case Activation::gelu: {
      const float half = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
      const float density = 0.3989422804014327f * expf(-0.5f * x * x);
      return {x * half, half + x * density};
    }
    case Activation::relu: return {fmaxf(x, 0.0f), x > 0.0f ? 1.0f : 0.0f};
  }
  return {0, 0};
}

template <class T, int V, bool Gated>
__global__ void __launch_bounds__(kRowThreads) expert_activation_kernel(ExpertActivation in, T* y) {
  const std::size_t row = blockIdx.x;
  const T* const h = static_cast<const T*>(in.h) + row * in.cols * (Gated ? 2 : 1);
  const float weight = in.weights[row];
  for (std::size_t c = threadIdx.x * V; c < in.cols; c += kRowThreads * V) {
    float x[V], v[V];
    Pack<T, V>::load(h + c).get(x);
    if constexpr (Gated) Pack<T, V>::load(h + in.cols + c).get(v);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      x[i] = activation_at<T>(in.activation, x[i]).value;
      if constexpr (Gated) x[i] *= v[i];
      x[i] *= weight;
    }
    Pack<T, V>::of(x).store(y + row * in.cols + c);
  }
}

template <class T, int V, bool Gated>
__global__ void __launch_bounds__(kRowThreads)
    expert_activation_backward_kernel(ExpertActivation in, const T* dy, T* dh, T* y,
                                      float* dweights) {
  __shared__ float shared[kRowThreads / 32];
  const std::size_t row = blockIdx.x, offset = row * in.cols * (Gated ? 2 : 1);
  const T* const h = static_cast<const T*>(in.h) + offset;
  dh += offset;
  const float weight = in.weights[row];
  float along = 0;
  for (std::size_t c = threadIdx.x * V; c < in.cols; c += kRowThreads * V) {
    float x[V], v[V], d[V];
    Pack<T, V>::load(h + c).get(x);
    if constexpr (Gated) Pack<T, V>::load(h + in.cols + c).get(v);
    Pack<T, V>::load(dy + row * in.cols + c).get(d);
    float out[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const At at = activation_at<T>(in.activation, x[i]);
      const float product = Gated ? at.value * v[i] : at.value;
      along += d[i] * product;
      out[i] = product * weight;
      const float scaled = d[i] * weight;
      x[i] = Gated ? scaled * v[i] * at.slope : scaled * at.slope;
      if constexpr (Gated) v[i] = scaled * at.value;
    }
    Pack<T, V>::of(x).store(dh + c);
    if constexpr (Gated) Pack<T, V>::of(v).store(dh + in.cols + c);
    Pack<T, V>::of(out).store(y + row * in.cols + c);
  }
  along = group_sum<kRowThreads>(along, shared);
  if (threadIdx.x == 0) dweights[row] = along;
}

unsigned blocks_of(std::size_t rows) { return static_cast<unsigned>(rows); }

}  // namespace

std::size_t sort_scratch(const SortPairs& in) {
  return (divide_up(in.pairs, kSortTile) + 1) * (in.experts + 1);
}

void sort_pairs(const SortPairs& in, std::int32_t* order, std::int32_t* slots, std::int64_t* counts,
                std::int32_t* scratch, Stream stream) {
  if (in.experts == 0 || in.experts > kMaxExperts) {
    throw UsageError("sort_pairs: " + std::to_string(in.experts) +
                     " experts. It must be between 1 and " + std::to_string(kMaxExperts) + ".");
  }
  const std::size_t tiles = divide_up(in.pairs, kSortTile), bins = in.experts + 1;
  const std::size_t bytes = bins * sizeof(std::int32_t);
  std::int32_t* const first = scratch + tiles * bins;
  if (tiles > 0) {
    count_tiles_kernel<<<blocks_of(tiles), 256, bytes, native(stream)>>>(in, scratch);
    check_launch("sort_pairs", in.pairs, in.experts);
  }
  first_rows_kernel<<<1, 1024, 0, native(stream)>>>(scratch, tiles, static_cast<int>(in.experts),
                                                    counts, first);
  check_launch("sort_pairs", in.pairs, in.experts);
  if (tiles == 0) return;
  place_pairs_kernel<<<blocks_of(tiles), 32, bytes, native(stream)>>>(in, scratch, first, order,
                                                                      slots);
  check_launch("sort_pairs", in.pairs, in.experts);
}

void order_pairs(const std::int32_t* slots, std::size_t pairs, std::int32_t* order, Stream stream) {
  if (pairs == 0) return;
  order_pairs_kernel<<<blocks_of(divide_up(pairs, 256)), 256, 0, native(stream)>>>(slots, pairs,
                                                                                   order);
  check_launch("order_pairs", pairs, 1);
}

void gather_rows(const GatherRows& in, void* out, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "gather_rows", [&]<class T>() {
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(out);
    const auto kernel = whole ? &gather_rows_kernel<T, kWide<T>> : &gather_rows_kernel<T, 1>;
    kernel<<<blocks_of(divide_up(in.rows, kGatherRows)), kRowThreads, 0, native(stream)>>>(
        in, static_cast<T*>(out));
    check_launch("gather_rows", in.rows, in.cols);
  });
}

void combine_rows(const CombineRows& in, void* out, Stream stream) {
  if (in.tokens == 0 || in.cols == 0) return;
  with_type(in.type, "combine_rows", [&]<class T>() {
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.rows) && is_aligned(out);
    const auto kernel = whole ? &combine_rows_kernel<T, kWide<T>> : &combine_rows_kernel<T, 1>;
    kernel<<<blocks_of(in.tokens), kRowThreads, 0, native(stream)>>>(in, static_cast<T*>(out));
    check_launch("combine_rows", in.tokens, in.cols);
  });
}

void expert_activation(const ExpertActivation& in, void* y, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "expert_activation", [&]<class T>() {
    constexpr int W = kWide<T>;
    const bool whole = in.cols % W == 0 && is_aligned(in.h) && is_aligned(y);
    const auto kernel = in.gated ? (whole ? &expert_activation_kernel<T, W, true>
                                          : &expert_activation_kernel<T, 1, true>)
                                 : (whole ? &expert_activation_kernel<T, W, false>
                                          : &expert_activation_kernel<T, 1, false>);
    kernel<<<blocks_of(in.rows), kRowThreads, 0, native(stream)>>>(in, static_cast<T*>(y));
    check_launch("expert_activation", in.rows, in.cols);
  });
}

void expert_activation_backward(const ExpertActivation& in, const void* dy, void* dh, void* y,
                                float* dweights, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "expert_activation_backward", [&]<class T>() {
    constexpr int W = kWide<T>;
    const bool whole =
        in.cols % W == 0 && is_aligned(in.h) && is_aligned(y) && is_aligned(dy) && is_aligned(dh);
    const auto kernel = in.gated ? (whole ? &expert_activation_backward_kernel<T, W, true>
                                          : &expert_activation_backward_kernel<T, 1, true>)
                                 : (whole ? &expert_activation_backward_kernel<T, W, false>
                                          : &expert_activation_backward_kernel<T, 1, false>);
    kernel<<<blocks_of(in.rows), kRowThreads, 0, native(stream)>>>(
        in, static_cast<const T*>(dy), static_cast<T*>(dh), static_cast<T*>(y), dweights);
    check_launch("expert_activation_backward", in.rows, in.cols);
  });
}

}  // namespace tessera::kernels::cuda
