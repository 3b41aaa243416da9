// Routers of mixtures of experts. A warp processes one token: lane i has the experts i, i + 32, ….
#include <cmath>

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/experts.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kTokensPerBlock = 4;
constexpr double kTinySum = 1e-20;  // keeps quotients finite if all scores are 0
constexpr unsigned kAllLanes = 0xffffffffu;

template <class T>
__device__ __forceinline__ T warp_total(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

template <class T>
__device__ __forceinline__ T warp_max(T x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, x, distance);
    x = other > x ? other : x;
  }
  return x;
}

__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

__device__ __forceinline__ int number_of(std::int32_t expert) {
  return expert < 0 ? ~expert : expert;
}

// Token of this warp. All lanes of a warp have the same one.
__device__ __forceinline__ std::size_t token_of_warp() {
  return blockIdx.x * static_cast<std::size_t>(kTokensPerBlock) + threadIdx.x / 32;
}

__device__ __forceinline__ bool is_padding(const Router& in, std::size_t token) {
  const std::size_t t = token % in.row;
  const std::int64_t position = t < in.split ? in.first + static_cast<std::int64_t>(t)
                                             : in.second + static_cast<std::int64_t>(t - in.split);
  return position >= in.row_tokens;
}

// Logits of one token, P for each lane, and the numbers that all its scores share.
template <int P>
struct Token {
  __device__ Token(const Router& of, std::size_t n)
      : in(of), logits(of.logits + n * static_cast<std::size_t>(of.experts.count)) {
    const int lane = static_cast<int>(threadIdx.x % 32), count = static_cast<int>(in.experts.count);
    top = -INFINITY;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const int e = lane + 32 * i;
      x[i] = e < count ? logits[e] : -INFINITY;
      top = fmax(top, static_cast<double>(x[i]));
    }
    top = warp_max(top);
    sum = 0;
    double sigmoids = 0;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      if (lane + 32 * i >= count) continue;
      sum += exp(x[i] - top);
      if (uses_sigmoid()) sigmoids += sigmoid(x[i]);
    }
    sum = warp_total(sum);
    total = uses_sigmoid() ? warp_total(sigmoids) + kTinySum : 1.0;
  }
  __device__ bool uses_sigmoid() const { return in.experts.scores == RouterScores::sigmoid; }
  __device__ double log_sum() const { return top + log(sum); }
  __device__ double softmax(float logit) const { return exp(logit - top) / sum; }
  __device__ double score(float logit) const {
    return uses_sigmoid() ? sigmoid(logit) : softmax(logit);
  }

  const Router& in;
  const float* logits;
  float x[P];
  double top, sum, total;
};

// Unsigned integers in the order of the numbers. Adding 0 makes -0 equal to 0.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <int P>
__global__ void choose_kernel(Router in, const float* bias, std::int32_t not_routed,
                              std::int32_t* chosen) {
  const std::size_t n = token_of_warp();
  if (n >= in.tokens) return;
  const int lane = static_cast<int>(threadIdx.x % 32), count = static_cast<int>(in.experts.count);
  const int k = static_cast<int>(in.experts.per_token);
  chosen += n * static_cast<std::size_t>(k);
  if (is_padding(in, n)) {
    for (int i = lane; i < k; i += 32) chosen[i] = not_routed;
    return;
  }
  const Token<P> token(in, n);
  // The higher half of a key is the value, the lower prefers experts with small numbers. 0: none.
  unsigned long long keys[P];
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int e = lane + 32 * i;
    keys[i] = 0;
    if (e >= count) continue;
    float value = token.x[i];
    if (bias != nullptr) value = static_cast<float>(token.score(value)) + bias[e];
    keys[i] = static_cast<unsigned long long>(ordered(value)) << 32 | ~static_cast<unsigned>(e);
  }
  for (int place = 0; place < k; ++place) {
    unsigned long long best = 0;
#pragma unroll
    for (int i = 0; i < P; ++i) best = keys[i] > best ? keys[i] : best;
    best = warp_max(best);
#pragma unroll
    for (int i = 0; i < P; ++i) {
      if (keys[i] == best) keys[i] = 0;
    }
    if (lane == 0) chosen[place] = static_cast<std::int32_t>(~static_cast<unsigned>(best));
  }
}

__global__ void count_kernel(Router in, const std::int32_t* chosen, std::int32_t not_routed,
                             std::size_t chunk, unsigned long long* counts) {
  extern __shared__ int own[];
  const int count = static_cast<int>(in.experts.count);
  const auto k = static_cast<std::size_t>(in.experts.per_token);
  for (int e = static_cast<int>(threadIdx.x); e < count; e += static_cast<int>(blockDim.x)) {
    own[e] = 0;
  }
  __syncthreads();
  // The blocks (·, y) share the chunk y of all rows.
  const std::size_t begin = blockIdx.y * chunk * k, end = begin + chunk * k;
  for (std::size_t i = begin + blockIdx.x * blockDim.x + threadIdx.x; i < end;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    if (chosen[i] != not_routed) atomicAdd(&own[number_of(chosen[i])], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < count; e += static_cast<int>(blockDim.x)) {
    if (own[e] != 0) atomicAdd(&counts[blockIdx.y * static_cast<std::size_t>(count) + e], own[e]);
  }
}

__device__ __forceinline__ double balance_factor(const Router& in) {
  const double tokens = static_cast<double>(in.row_tokens);
  return static_cast<double>(in.experts.count) /
         (static_cast<double>(in.experts.per_token) * tokens * tokens);
}

template <int P>
__global__ void weigh_kernel(Router in, const std::int32_t* chosen, const std::int64_t* counts,
                             float* weights, double* sums) {
  const std::size_t n = token_of_warp();
  if (n >= in.tokens) return;
  const Experts& options = in.experts;
  const int lane = static_cast<int>(threadIdx.x % 32), count = static_cast<int>(options.count);
  const int k = static_cast<int>(options.per_token);
  chosen += n * static_cast<std::size_t>(k);
  weights += n * static_cast<std::size_t>(k);
  sums += n * 5;
  if (is_padding(in, n)) {
    for (int i = lane; i < k; i += 32) weights[i] = 0;
    if (lane < 5) sums[lane] = 0;
    return;
  }
  const Token<P> token(in, n);
  double selected = 0, dropped = 0;
  for (int i = lane; i < k; i += 32) {
    selected += token.score(token.logits[number_of(chosen[i])]);
    dropped += chosen[i] < 0 ? 1 : 0;
  }
  selected = warp_total(selected);
  const double factor = options.scale / (options.normalized ? selected + kTinySum : 1.0);
  for (int i = lane; i < k; i += 32) {
    weights[i] =
        chosen[i] < 0 ? 0.0f : static_cast<float>(token.score(token.logits[chosen[i]]) * factor);
  }
  double entropy = 0, balance = 0;
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int e = lane + 32 * i;
    if (e >= count) continue;
    const double p = token.score(token.x[i]) / token.total;
    if (p > 0) entropy -= p * log(p);
    if (counts != nullptr) {
      balance += p * static_cast<double>(counts[n / in.row * static_cast<std::size_t>(count) + e]);
    }
  }
  dropped = warp_total(dropped);
  entropy = warp_total(entropy);
  balance = warp_total(balance) * balance_factor(in);
  if (lane != 0) return;
  const double log_sum = token.log_sum();
  const double all[] = {dropped, 1, entropy, balance,
                        log_sum * log_sum / static_cast<double>(in.row_tokens)};
  for (int i = 0; i < 5; ++i) sums[i] = all[i];
}

template <int P>
__global__ void weigh_backward_kernel(Router in, const std::int32_t* chosen,
                                      const std::int64_t* counts, const float* dweights,
                                      const float* dloss, float* dlogits) {
  extern __shared__ double shared[];
  const std::size_t n = token_of_warp();
  if (n >= in.tokens) return;
  const Experts& options = in.experts;
  const int lane = static_cast<int>(threadIdx.x % 32), count = static_cast<int>(options.count);
  const int k = static_cast<int>(options.per_token);
  dlogits += n * static_cast<std::size_t>(count);
  if (is_padding(in, n)) {
    for (int e = lane; e < count; e += 32) dlogits[e] = 0;
    return;
  }
  double* const ds = shared + threadIdx.x / 32 * static_cast<std::size_t>(count);  // of the scores
  for (int e = lane; e < count; e += 32) ds[e] = 0;
  __syncwarp();
  const Token<P> token(in, n);
  if (dweights != nullptr) {
    chosen += n * static_cast<std::size_t>(k);
    dweights += n * static_cast<std::size_t>(k);
    double total = 0, along = 0;
    for (int i = lane; i < k; i += 32) {
      const double score = token.score(token.logits[number_of(chosen[i])]);
      total += score;
      if (chosen[i] >= 0) along += score * dweights[i];
    }
    total = warp_total(total) + kTinySum;
    along = warp_total(along);
    for (int i = lane; i < k; i += 32) {
      const double d = chosen[i] < 0 ? 0.0 : static_cast<double>(dweights[i]);
      ds[number_of(chosen[i])] =
          options.scale * (options.normalized ? (d - along / total) / total : d);
    }
    __syncwarp();
  }
  const double loss = dloss != nullptr ? static_cast<double>(*dloss) : 0.0;
  const double z = loss * options.z_loss * 2 / static_cast<double>(in.row_tokens);
  const double balance = counts != nullptr ? loss * options.balance_loss * balance_factor(in) : 0.0;
  const bool sigmoids = token.uses_sigmoid();
  if (balance != 0) {
    counts += n / in.row * static_cast<std::size_t>(count);
    double along = 0;
    if (sigmoids) {
      for (int i = 0; i < P; ++i) {
        const int e = lane + 32 * i;
        if (e >= count) continue;
        along += token.score(token.x[i]) / token.total * static_cast<double>(counts[e]);
      }
      along = warp_total(along);
    }
    for (int e = lane; e < count; e += 32) {
      const auto d = static_cast<double>(counts[e]);
      ds[e] += balance * (sigmoids ? (d - along) / token.total : d);
    }
  }
  double along = 0;
  if (!sigmoids) {
    for (int i = 0; i < P; ++i) {
      const int e = lane + 32 * i;
      if (e < count) along += ds[e] * token.softmax(token.x[i]);
    }
    along = warp_total(along);
  }
  const double log_sum = token.log_sum();
#pragma unroll
  for (int i = 0; i < P; ++i) {
    const int e = lane + 32 * i;
    if (e >= count) continue;
    const double p = token.softmax(token.x[i]), s = token.score(token.x[i]);
    const double d = sigmoids ? s * (1 - s) * ds[e] : s * (ds[e] - along);
    dlogits[e] = static_cast<float>(d + z * log_sum * p);
  }
}

// Calls f.operator()<P>() with at least count / 32 numbers for each lane.
template <class F>
void with_lanes(const Router& in, const char* kernel, F&& f) {
  const auto count = static_cast<std::size_t>(in.experts.count);
  if (count == 0 || count > kMaxExperts) {
    throw UsageError(std::string(kernel) + ": " + std::to_string(count) +
                     " experts. It must be between 1 and " + std::to_string(kMaxExperts) + ".");
  }
  if (count <= 32) return f.template operator()<1>();
  if (count <= 64) return f.template operator()<2>();
  if (count <= 128) return f.template operator()<4>();
  if (count <= 256) return f.template operator()<8>();
  return f.template operator()<32>();
}

dim3 blocks_of_tokens(const Router& in) {
  return dim3(static_cast<unsigned>(divide_up(in.tokens, kTokensPerBlock)));
}

}  // namespace

void choose_experts(const Router& in, const float* bias, std::int32_t not_routed,
                    std::int32_t* chosen, Stream stream) {
  if (in.tokens == 0) return;
  with_lanes(in, "choose_experts", [&]<int P>() {
    choose_kernel<P><<<blocks_of_tokens(in), 32 * kTokensPerBlock, 0, native(stream)>>>(
        in, bias, not_routed, chosen);
    check_launch("choose_experts", in.tokens, static_cast<std::size_t>(in.experts.count));
  });
}

void count_experts(const Router& in, const std::int32_t* chosen, std::int32_t not_routed,
                   std::size_t chunks, unsigned long long* counts, Stream stream) {
  if (in.tokens == 0) return;
  const std::size_t chunk = in.row / chunks, rows = in.tokens / chunk;
  const auto count = static_cast<std::size_t>(in.experts.count);
  const std::size_t pairs = chunk * static_cast<std::size_t>(in.experts.per_token);
  const dim3 grid(static_cast<unsigned>(std::min<std::size_t>(divide_up(pairs, 1024), 64)),
                  static_cast<unsigned>(rows));
  count_kernel<<<grid, 256, count * sizeof(int), native(stream)>>>(in, chosen, not_routed, chunk,
                                                                   counts);
  check_launch("count_experts", in.tokens, count);
}

void weigh_experts(const Router& in, const std::int32_t* chosen, const std::int64_t* counts,
                   float* weights, double* sums, Stream stream) {
  if (in.tokens == 0) return;
  with_lanes(in, "weigh_experts", [&]<int P>() {
    weigh_kernel<P><<<blocks_of_tokens(in), 32 * kTokensPerBlock, 0, native(stream)>>>(
        in, chosen, counts, weights, sums);
    check_launch("weigh_experts", in.tokens, static_cast<std::size_t>(in.experts.count));
  });
}

void weigh_experts_backward(const Router& in, const std::int32_t* chosen,
                            const std::int64_t* counts, const float* dweights, const float* dloss,
                            float* dlogits, Stream stream) {
  if (in.tokens == 0) return;
  const std::size_t bytes =
      kTokensPerBlock * static_cast<std::size_t>(in.experts.count) * sizeof(double);
  with_lanes(in, "weigh_experts_backward", [&]<int P>() {
    weigh_backward_kernel<P><<<blocks_of_tokens(in), 32 * kTokensPerBlock, bytes, native(stream)>>>(
        in, chosen, counts, dweights, dloss, dlogits);
    check_launch("weigh_experts_backward", in.tokens, static_cast<std::size_t>(in.experts.count));
  });
}

}  // namespace tessera::kernels::cuda
