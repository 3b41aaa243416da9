// One step of an optimizer on all elements. AdamW on bf16 with a master copy moves 28 bytes per
// element, so memory bandwidth is the limit. Adjacent threads therefore access adjacent elements,
// 16 bytes of fp32 or 8 of 16-bit numbers at a time, and each thread loads ahead.
#include <cstring>
#include <type_traits>

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/optimizer.h"
#include "tessera/kernels/cuda/philox.cuh"
#include "tessera/kernels/cuda/rules.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kFour = 4;  // consecutive elements per thread
constexpr std::uint32_t kRound = kThreads * kFour;
constexpr int kUpdateBlocksPerSm = 4;  // blocks per SM

// Four elements as stored in memory. Accesses use streaming hints, since nothing is read twice.
template <class T>
struct Four {
  using Words = std::conditional_t<sizeof(T) == 4, float4, uint2>;
  Words words;

  __device__ __forceinline__ void load(const T* from) {
    words = __ldcs(reinterpret_cast<const Words*>(from));
  }
  __device__ __forceinline__ void get(float (&x)[4]) const {
    if constexpr (sizeof(T) == 4) {
      x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
    } else {
      const float2 low = wide_pair<T>(words.x), high = wide_pair<T>(words.y);
      x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    }
  }
};
template <class T>
__device__ __forceinline__ void store_four(T* to, const float (&x)[4]) {
  if constexpr (sizeof(T) == 4) {
    __stcs(reinterpret_cast<float4*>(to), float4{x[0], x[1], x[2], x[3]});
  } else {
    __stcs(reinterpret_cast<uint2*>(to),
           uint2{narrow_pair<T>(x[0], x[1]), narrow_pair<T>(x[2], x[3])});
  }
}

// Numbers and pieces to process, from a table or given directly.
struct Work {
  const UpdatePiece* pieces;  // null: each block takes a piece of `one`
  const ParamStep* steps;
  UpdatePiece one;
  ParamStep one_step;
  std::uint64_t seed;
};

template <class G, class P>
struct Piece {
  const G* grad;
  float* a;
  float* b;
  float* master;
  P* param;
  std::uint64_t begin;
  std::uint32_t count;
};

template <class G, class P>
__device__ __forceinline__ Piece<G, P> piece_of(const Work& work) {
  if (work.pieces != nullptr) {
    const UpdatePiece& each = work.pieces[blockIdx.x];
    return {static_cast<const G*>(each.grad), each.a,     each.b,    each.master,
            static_cast<P*>(each.param),      each.begin, each.count};
  }
  const std::uint32_t skip = blockIdx.x * kUpdatePiece;
  const std::uint32_t left = work.one.count - skip;
  const auto moved = [skip](float* x) { return x == nullptr ? nullptr : x + skip; };
  return {static_cast<const G*>(work.one.grad) + skip,
          moved(work.one.a),
          moved(work.one.b),
          moved(work.one.master),
          static_cast<P*>(work.one.param) + skip,
          work.one.begin + skip,
          left < kUpdatePiece ? left : kUpdatePiece};
}

__device__ __forceinline__ const ParamStep& step_of(const Work& work) {
  return work.pieces == nullptr ? work.one_step : work.steps[work.pieces[blockIdx.x].index];
}

template <int states, bool has_master, class G, class P>
__device__ __forceinline__ bool is_fast(const Piece<G, P>& piece) {
  auto bits = reinterpret_cast<std::uintptr_t>(piece.grad) % (kFour * sizeof(G)) +
              reinterpret_cast<std::uintptr_t>(piece.param) % (kFour * sizeof(P));
  if constexpr (states > 0) bits += reinterpret_cast<std::uintptr_t>(piece.a) % 16;
  if constexpr (states > 1) bits += reinterpret_cast<std::uintptr_t>(piece.b) % 16;
  if constexpr (has_master) bits += reinterpret_cast<std::uintptr_t>(piece.master) % 16;
  return bits == 0;
}

template <class F, class G, class P, bool has_master>
__global__ void __launch_bounds__(kThreads, kUpdateBlocksPerSm) update_pieces(const Work work) {
  const ParamStep& step = step_of(work);
  if (step.active == 0) return;
  const F formula = *reinterpret_cast<const F*>(step.numbers);
  const Piece<G, P> s = piece_of<G, P>(work);
  const std::uint32_t rounds = is_fast<F::states, has_master>(s) ? s.count / kRound * kRound : 0;
  // Loads for the next round are issued during this one.
  Four<G> next_grad;
  Four<float> next_a, next_b;
  Four<std::conditional_t<has_master, float, P>> next_value;
  const auto read = [&](std::uint32_t i) {
    next_grad.load(s.grad + i);
    if constexpr (F::states > 0) next_a.load(s.a + i);
    if constexpr (F::states > 1) next_b.load(s.b + i);
    if constexpr (has_master) {
      next_value.load(s.master + i);
    } else {
      next_value.load(s.param + i);
    }
  };
  std::uint32_t i = threadIdx.x * kFour;
  if (i < rounds) read(i);
  while (i < rounds) {
    float a[kFour], b[kFour], value[kFour], grad[kFour];
    next_grad.get(grad);
    if constexpr (F::states > 0) next_a.get(a);
    if constexpr (F::states > 1) next_b.get(b);
    next_value.get(value);
    const std::uint32_t here = i;
    i += kRound;
    if (i < rounds) read(i);
#pragma unroll
    for (std::uint32_t k = 0; k < kFour; ++k) {
      value[k] = formula.update(grad[k], value[k], a[k], b[k]);
    }
    if constexpr (F::states > 0) store_four(s.a + here, a);
    if constexpr (F::states > 1) store_four(s.b + here, b);
    if constexpr (has_master) store_four(s.master + here, value);
    store_four(s.param + here, value);
  }
  for (i = rounds + threadIdx.x; i < s.count; i += kThreads) {
    float a = 0, b = 0;
    if constexpr (F::states > 0) a = s.a[i];
    if constexpr (F::states > 1) b = s.b[i];
    float value = 0;
    if constexpr (has_master) {
      value = s.master[i];
    } else {
      value = wide(s.param[i]);
    }
    value = formula.update(wide(s.grad[i]), value, a, b);
    if constexpr (F::states > 0) s.a[i] = a;
    if constexpr (F::states > 1) s.b[i] = b;
    if constexpr (has_master) s.master[i] = value;
    s.param[i] = narrow<P>(value);
  }
}

// bf16 without a master copy. A Philox block provides the noise of eight elements that are 16
// apart: a thread takes those eight, and 16 threads process a group of 128.
template <class F, class G>
__global__ void __launch_bounds__(kThreads) update_pieces_stochastic(const Work work) {
  constexpr int kElements = 8, kSixteen = 16, kGroup = 128;
  const ParamStep& step = step_of(work);
  if (step.active == 0) return;
  const F formula = *reinterpret_cast<const F*>(step.numbers);
  const std::uint64_t stream = step.stream;
  const std::uint32_t update = step.count;
  const Piece<G, bf16> s = piece_of<G, bf16>(work);
  const std::uint64_t end = s.begin + s.count;
  const std::uint32_t j = threadIdx.x % kSixteen;
  for (std::uint64_t group = s.begin / kGroup + threadIdx.x / kSixteen; group * kGroup < end;
       group += kThreads / kSixteen) {
    std::uint32_t words[4];
    philox_block(static_cast<std::uint32_t>(kSixteen * group + j), update, stream, work.seed,
                 words);
    float grad[kElements], value[kElements], a[kElements], b[kElements];
    // Returns the index of an element in the piece. Elements outside of it wrap to a large value.
    const auto place = [&](int e) {
      return static_cast<std::uint32_t>(group * kGroup + e * kSixteen + j - s.begin);
    };
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const std::uint32_t i = place(e);
      if (i >= s.count) continue;
      grad[e] = wide(s.grad[i]);
      value[e] = wide(s.param[i]);
      if constexpr (F::states > 0) a[e] = s.a[i];
      if constexpr (F::states > 1) b[e] = s.b[i];
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const std::uint32_t i = place(e);
      if (i >= s.count) continue;
      const float exact = formula.update(grad[e], value[e], a[e], b[e]);
      if constexpr (F::states > 0) s.a[i] = a[e];
      if constexpr (F::states > 1) s.b[i] = b[e];
      const std::uint32_t noise = e < 4 ? words[e] & 0xffffu : words[e - 4] >> 16;
      const std::uint32_t bits = __float_as_uint(exact) + (isnan(exact) ? 0u : noise);
      s.param[i] = __ushort_as_bfloat16(static_cast<unsigned short>(bits >> 16));
    }
  }
}

template <class F>
void launch(const UpdateTypes& types, const Work& work, std::size_t blocks, Stream stream) {
  const auto grid = static_cast<unsigned>(blocks);
  const bool same = types.grad == types.param, whole = types.grad == DType::f32;
  if (types.param == DType::f32 && !types.master) {
    with_type(types.grad, "update", [&]<class G>() {
      update_pieces<F, G, float, false><<<grid, kThreads, 0, native(stream)>>>(work);
    });
  } else if (types.param == DType::bf16 && types.master && (same || whole)) {
    same ? update_pieces<F, bf16, bf16, true><<<grid, kThreads, 0, native(stream)>>>(work)
         : update_pieces<F, float, bf16, true><<<grid, kThreads, 0, native(stream)>>>(work);
  } else if (types.param == DType::f16 && types.master && (same || whole)) {
    same ? update_pieces<F, f16, f16, true><<<grid, kThreads, 0, native(stream)>>>(work)
         : update_pieces<F, float, f16, true><<<grid, kThreads, 0, native(stream)>>>(work);
  } else if (types.param == DType::bf16 && !types.master && (same || whole)) {
    same ? update_pieces_stochastic<F, bf16><<<grid, kThreads, 0, native(stream)>>>(work)
         : update_pieces_stochastic<F, float><<<grid, kThreads, 0, native(stream)>>>(work);
  } else {
    throw UsageError(std::string("CUDA kernel update: ") + name(types.param) + " parameters " +
                     (types.master ? "with" : "without") + " a master copy and " +
                     name(types.grad) +
                     " gradients are not supported. Use f32 without a master copy, bf16 with or "
                     "without one, or f16 with one, and 16-bit parameters with gradients of the "
                     "same type or f32.");
  }
  check_launch("update", blocks, kUpdatePiece);
}

}  // namespace

void update(const rules::Rule& rule, const UpdateTypes& types, const UpdatePiece* pieces,
            std::size_t count, const ParamStep* steps, Stream stream) {
  if (count == 0) return;
  with_formula(rule, [&]<class F>(const auto&) {
    launch<F>(types, {pieces, steps, {}, {}, types.seed}, count, stream);
  });
}

void update(const rules::Rule& rule, const rules::Step& step, const UpdateTypes& types,
            const UpdatePiece& shard, std::uint64_t noise_stream, Stream stream) {
  if (shard.count == 0) return;
  with_formula(rule, [&]<class F>(const auto& settings) {
    ParamStep numbers;
    const F formula(settings, step.lr, step.weight_decay, step.count, step.grad_scale);
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= sizeof(numbers.numbers));
    std::memcpy(numbers.numbers, &formula, sizeof(F));
    numbers.active = 1;
    numbers.count = static_cast<std::uint32_t>(step.count);
    numbers.stream = noise_stream;
    launch<F>(types, {nullptr, nullptr, shard, numbers, types.seed},
              divide_up(shard.count, kUpdatePiece), stream);
  });
}

}  // namespace tessera::kernels::cuda
