// Steps before the update: sums of squares, and the decisions that depend on them.
#include "tessera/kernels/cuda/optimizer.h"

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/rules.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int kSquareThreads = 256;
constexpr int kSquareAhead = 4;  // loads in flight per thread
constexpr int kTogether = 8;     // consecutive elements per thread
constexpr int kFinishThreads = 1024;
constexpr int kDecideThreads = 256;

// Loads elements [at, at + 8) of a piece, with zeros beyond its end.
template <class T>
__device__ __forceinline__ void load_squares(const T* x, std::uint32_t count, std::uint32_t at,
                                             bool aligned, float (&out)[kTogether]) {
  constexpr int W = kWide<T>;
  if (aligned && at + kTogether <= count) {
#pragma unroll
    for (int i = 0; i < kTogether; i += W) {
      float part[W];
      Pack<T, W>::load(x + at + i).get(part);
#pragma unroll
      for (int j = 0; j < W; ++j) out[i + j] = part[j];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) out[i] = at + i < count ? wide(x[at + i]) : 0.0f;
  }
}

// The thread that adds an element depends only on the element's index in the piece.
template <class T>
__device__ double piece_squares(const T* x, std::uint32_t count) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  double sums[2] = {0, 0};
  constexpr std::uint32_t stride = kSquareThreads * kTogether;
  for (std::uint32_t base = 0; base < count; base += kSquareAhead * stride) {
    float values[kSquareAhead][kTogether];
    if (aligned && base + kSquareAhead * stride <= count) {
      // Issues all loads before the first use.
      constexpr int W = kWide<T>;
      Pack<T, W> packs[kSquareAhead][kTogether / W];
#pragma unroll
      for (int u = 0; u < kSquareAhead; ++u) {
#pragma unroll
        for (int i = 0; i < kTogether / W; ++i) {
          packs[u][i] = Pack<T, W>::load(x + base + u * stride + threadIdx.x * kTogether + i * W);
        }
      }
#pragma unroll
      for (int u = 0; u < kSquareAhead; ++u) {
#pragma unroll
        for (int i = 0; i < kTogether / W; ++i) {
          float part[W];
          packs[u][i].get(part);
#pragma unroll
          for (int j = 0; j < W; ++j) values[u][i * W + j] = part[j];
        }
      }
    } else {
#pragma unroll
      for (int u = 0; u < kSquareAhead; ++u) {
        load_squares(x, count, base + u * stride + threadIdx.x * kTogether, aligned, values[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kSquareAhead; ++u) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const double value = values[u][i];
        sums[i % 2] = fma(value, value, sums[i % 2]);
      }
    }
  }
  return sums[0] + sums[1];
}

// Returns the sum over a block in thread 0. `shared` has one number per warp.
__device__ __forceinline__ double block_sum(double x, double* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_down_sync(0xffffffffu, x, distance);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += shared[warp];
  }
  return sum;
}

__global__ void __launch_bounds__(kSquareThreads)
    squares_of_pieces(const SquarePiece* pieces, double* partials) {
  __shared__ double shared[kSquareThreads / 32];
  const SquarePiece piece = pieces[blockIdx.x];
  double sum = 0;
  switch (piece.type) {
    case DType::f32: sum = piece_squares(static_cast<const float*>(piece.x), piece.count); break;
    case DType::bf16: sum = piece_squares(static_cast<const bf16*>(piece.x), piece.count); break;
    default: sum = piece_squares(static_cast<const f16*>(piece.x), piece.count); break;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kFinishThreads)
    finish_squares(const double* partials, std::size_t count, const double* loss,
                   const std::uint8_t* used, std::size_t params, void* out) {
  __shared__ double shared[kFinishThreads / 32];
  double sum = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kFinishThreads) sum += partials[i];
  sum = block_sum(sum, shared);
  auto* const sums = static_cast<StepSums*>(out);
  if (threadIdx.x == 0) {
    sums->squares = sum;
    sums->loss = loss == nullptr ? 0.0 : *loss;
  }
  auto* const bytes = reinterpret_cast<std::uint8_t*>(sums + 1);
  for (std::size_t i = threadIdx.x; i < params; i += kFinishThreads) bytes[i] = used[i];
}

__global__ void __launch_bounds__(kDecideThreads)
    add_rows(const void* rows, int ranks, std::size_t stride, std::size_t params, bool counts_loss,
             void* out) {
  const auto* const first = static_cast<const std::uint8_t*>(rows);
  auto* const sums = static_cast<StepSums*>(out);
  if (threadIdx.x == 0) {
    StepSums total;
    for (int r = 0; r < ranks; ++r) {
      const auto& row = *reinterpret_cast<const StepSums*>(first + r * stride);
      total.squares += row.squares;
      total.loss += row.loss;
    }
    if (!counts_loss) total.loss = 0;
    *sums = total;
  }
  auto* const bytes = reinterpret_cast<std::uint8_t*>(sums + 1);
  for (std::size_t i = threadIdx.x; i < params; i += kDecideThreads) {
    std::uint8_t any = 0;
    for (int r = 0; r < ranks; ++r) any |= first[r * stride + sizeof(StepSums) + i];
    bytes[i] = any;
  }
}

template <class F, class R>
__global__ void __launch_bounds__(kDecideThreads) decide_step(const R rule, const Decision what) {
  __shared__ bool go;
  __shared__ double scale, lr, weight_decay;
  if (threadIdx.x == 0) {
    const auto& sums = *static_cast<const StepSums*>(what.sums);
    StepState state = *what.state;
    StepResult result;
    result.loss = sums.loss;
    result.loss_scale = what.scaled ? state.loss_scale : 1.0;
    result.norm = sqrt(sums.squares) / result.loss_scale;
    go = isfinite(result.norm) && isfinite(result.loss);
    result.skipped = go ? 0 : 1;
    double factor = 1;
    const double clip = what.input->clip_norm;
    if (clip > 0) factor = fmin(1.0, clip / (result.norm + 1e-6));
    scale = factor / result.loss_scale;
    result.grad_scale = scale;
    lr = what.input->lr;
    weight_decay = what.input->weight_decay;
    if (what.scaled && !go) {
      state.loss_scale = fmax(1.0, state.loss_scale / 2);
      state.good_steps = 0;
    } else if (what.scaled && ++state.good_steps >= kGoodSteps) {
      state.loss_scale = fmin(kLargestLossScale, state.loss_scale * 2);
      state.good_steps = 0;
    }
    state.steps += go ? 1 : 0;
    result.steps = state.steps;
    *what.state = state;
    *what.result = result;
  }
  __syncthreads();
  const auto* const used =
      reinterpret_cast<const std::uint8_t*>(static_cast<const StepSums*>(what.sums) + 1);
  for (std::size_t i = threadIdx.x; i < what.params; i += kDecideThreads) {
    ParamStep step;
    if (go && used[i] != 0) {
      const ParamInfo info = what.infos[i];
      const std::int64_t count = ++what.updates[i];
      static_assert(sizeof(F) <= sizeof(step.numbers));
      *reinterpret_cast<F*>(step.numbers) =
          F(rule, lr * info.lr_scale, info.decays != 0 ? weight_decay : 0.0, count, scale);
      step.active = 1;
      step.count = static_cast<std::uint32_t>(count);
      step.stream = info.stream;
    }
    what.steps[i] = step;
  }
}

__global__ void __launch_bounds__(kDecideThreads)
    decide_matrix_steps(const rules::Momentum rule, const MatrixDecision what) {
  using Momentum = Formula<rules::Momentum>;
  using Descent = Formula<rules::Descent>;
  static_assert(sizeof(Momentum) <= sizeof(ParamStep::numbers));
  static_assert(sizeof(Descent) <= sizeof(ParamStep::numbers));
  const std::size_t i = std::size_t{blockIdx.x} * kDecideThreads + threadIdx.x;
  if (i >= what.params) return;
  const ParamStep& decided = what.decided[i];
  ParamStep momentum, descent;
  if (decided.active != 0 && what.scales[i] != 0) {
    momentum.active = descent.active = 1;
    momentum.count = descent.count = decided.count;
    momentum.stream = descent.stream = decided.stream;
    const ParamInfo info = what.infos[i];
    const std::int64_t count = decided.count;
    const double decay = info.decays != 0 ? what.input->matrix_weight_decay : 0.0;
    rules::Descent scaled;
    scaled.scale = what.scales[i];
    *reinterpret_cast<Momentum*>(momentum.numbers) =
        Momentum(rule, 0, 0, count, what.result->grad_scale);
    *reinterpret_cast<Descent*>(descent.numbers) =
        Descent(scaled, what.input->lr * info.lr_scale, decay, count, 1);
  }
  what.momentum[i] = momentum;
  what.descent[i] = descent;
}

}  // namespace

void sum_of_squares(const SquarePiece* pieces, std::size_t count, double* partials,
                    const double* loss, const std::uint8_t* used, std::size_t params, void* out,
                    Stream stream) {
  if (count > 0) {
    squares_of_pieces<<<static_cast<unsigned>(count), kSquareThreads, 0, native(stream)>>>(
        pieces, partials);
    check_launch("squares_of_pieces", count, kSquarePiece);
  }
  finish_squares<<<1, kFinishThreads, 0, native(stream)>>>(partials, count, loss, used, params,
                                                           out);
  check_launch("finish_squares", 1, count);
}

void add_sums(const void* rows, int ranks, std::size_t params, bool counts_loss, void* out,
              Stream stream) {
  add_rows<<<1, kDecideThreads, 0, native(stream)>>>(rows, ranks, sums_bytes(params), params,
                                                     counts_loss, out);
  check_launch("add_rows", static_cast<std::size_t>(ranks), params);
}

void decide(const rules::Rule& rule, const Decision& what, Stream stream) {
  with_formula(rule, [&]<class F>(const auto& settings) {
    decide_step<F><<<1, kDecideThreads, 0, native(stream)>>>(settings, what);
  });
  check_launch("decide_step", 1, what.params);
}

void decide_matrices(const rules::Momentum& rule, const MatrixDecision& what, Stream stream) {
  decide_matrix_steps<<<static_cast<unsigned>(divide_up(what.params, kDecideThreads)),
                        kDecideThreads, 0, native(stream)>>>(rule, what);
  check_launch("decide_matrix_steps", 1, what.params);
}

}  // namespace tessera::kernels::cuda
