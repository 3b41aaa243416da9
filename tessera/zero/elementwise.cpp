#include "tessera/zero/elementwise.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <limits>

#include "tessera/core/philox.h"
#include "tessera/kernels/cuda/optimizer.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/parallel_for.h"
#include "tessera/zero/formulas.h"

namespace tessera::zero {
namespace {

// Elements of a shard that one thread processes at a time.
constexpr std::int64_t kGrain = 1 << 16;

template <typename T>
T* at_element(const at::Tensor& tensor, std::int64_t index) {
  return tensor.defined() ? tensor.data_ptr<T>() + index : nullptr;
}

void fused(const rules::Rule& rule, const rules::Step& step, const ShardTensors& shard,
           kernels::Type param_type, kernels::Type grad_type) {
  const at::Tensor &param = shard.param, &grad = shard.grad;
  nn::parallel_for(0, param.numel(), kGrain, [&](std::int64_t from, std::int64_t to) {
    kernels::ParamShard mine;
    mine.param = static_cast<std::byte*>(param.data_ptr()) + from * param.element_size();
    mine.param_type = param_type;
    mine.master = at_element<float>(shard.master, from);
    mine.grad = static_cast<const std::byte*>(grad.const_data_ptr()) + from * grad.element_size();
    mine.grad_type = grad_type;
    mine.count = static_cast<std::size_t>(to - from);
    mine.begin = static_cast<std::uint64_t>(shard.begin + from);
    mine.stream = shard.stream;
    mine.seed = shard.seed;
    kernels::update(rule, step, mine, at_element<float>(shard.a, from),
                    at_element<float>(shard.b, from));
  });
}

// Runs the update in a GPU kernel. Returns false if no kernel supports these tensors.
bool fused_on_gpu(const rules::Rule& rule, const rules::Step& step, const ShardTensors& shard) {
  const at::Tensor &param = shard.param, &grad = shard.grad;
  const auto fits = [](const at::Tensor& state) {
    return !state.defined() || (state.scalar_type() == at::kFloat && state.is_contiguous());
  };
  if (!nn::gpu::takes(param) || !nn::gpu::takes(grad) || !param.is_contiguous() ||
      !grad.is_contiguous() || !fits(shard.a) || !fits(shard.b) || !fits(shard.master) ||
      param.numel() > std::numeric_limits<std::int32_t>::max()) {
    return false;
  }
  kernels::cuda::UpdateTypes types;
  types.param = nn::gpu::type_of(param);
  types.grad = nn::gpu::type_of(grad);
  types.master = shard.master.defined();
  types.seed = shard.seed;
  const bool narrow = types.param != DType::f32;
  if (narrow ? (types.grad != types.param && types.grad != DType::f32) ||
                   (types.param == DType::f16 && !types.master)
             : types.master) {
    return false;
  }
  kernels::cuda::UpdatePiece piece;
  piece.grad = grad.const_data_ptr();
  piece.a = at_element<float>(shard.a, 0);
  piece.b = at_element<float>(shard.b, 0);
  piece.master = at_element<float>(shard.master, 0);
  piece.param = param.mutable_data_ptr();
  piece.begin = static_cast<std::uint64_t>(shard.begin);
  piece.count = static_cast<std::uint32_t>(param.numel());
  kernels::cuda::update(rule, step, types, piece, shard.stream, nn::gpu::stream_of(param));
  return true;
}

void composite(const rules::Rule& rule, const rules::Step& step, const ShardTensors& shard) {
  const at::Tensor& value = shard.param;
  const at::ScalarType type = value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor grad = shard.grad.to(type) * step.grad_scale;
  // The same tensor as `value` if no conversion is needed.
  const at::Tensor exact = shard.master.defined() ? shard.master : value.to(type);
  std::visit([&](const auto& how) { formula(how, step, exact, grad, shard.a, shard.b); }, rule);
  if (shard.master.defined()) {
    value.copy_(shard.master);
  } else if (value.scalar_type() == at::kBFloat16) {
    value.copy_(round_stochastically(exact, shard.begin, shard.stream, shard.seed, step.count));
  } else if (!exact.is_same(value)) {
    value.copy_(exact);
  }
}

// High and low 32 bits of a product of 32-bit numbers, held in 64-bit tensors.
struct Halves {
  at::Tensor high, low;
};
Halves product(const at::Tensor& a, std::int64_t b) {
  constexpr std::int64_t kMask = 0xffff;
  const at::Tensor low = a.bitwise_and(kMask) * b;  // below 2^48
  const at::Tensor high = a.bitwise_right_shift(16) * b + low.bitwise_right_shift(16);
  return {high.bitwise_right_shift(16),
          high.bitwise_and(kMask).bitwise_left_shift(16).bitwise_or(low.bitwise_and(kMask))};
}

}  // namespace

void update_shard(const rules::Rule& rule, const rules::Step& step, const ShardTensors& shard) {
  const auto param_type = kernel_type(shard.param);
  const auto grad_type = kernel_type(shard.grad);
  if (param_type && grad_type) {
    fused(rule, step, shard, *param_type, *grad_type);
  } else if (!fused_on_gpu(rule, step, shard)) {
    composite(rule, step, shard);
  }
}

std::optional<kernels::Type> kernel_type(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return std::nullopt;
  if (tensor.scalar_type() == at::kFloat) return kernels::Type::f32;
  if (tensor.scalar_type() == at::kBFloat16) return kernels::Type::bf16;
  return std::nullopt;
}

at::Tensor round_stochastically(const at::Tensor& values, std::int64_t begin, std::uint64_t stream,
                                std::uint64_t seed, std::int64_t step) {
  constexpr std::int64_t kWord = 0xffffffff;
  const at::Tensor index =
      at::arange(begin, begin + values.numel(), at::device(values.device()).dtype(at::kLong));
  // [Note: noise] in kernels/optimizer.h defines the block, word and half of each element.
  const at::Tensor block = index.bitwise_right_shift(7) * 16 + index.bitwise_and(15);
  const at::Tensor word = index.bitwise_right_shift(4).bitwise_and(3);
  const at::Tensor half = index.bitwise_right_shift(6).bitwise_and(1);
  const auto low = [](std::uint64_t x) { return static_cast<std::int64_t>(x & 0xffffffff); };
  const auto high = [](std::uint64_t x) { return static_cast<std::int64_t>(x >> 32); };
  // The counter is (step << 32) + block: blocks stay below 2^32.
  at::Tensor c0 = block, c1 = at::full_like(block, step & kWord);
  at::Tensor c2 = at::full_like(block, low(stream)), c3 = at::full_like(block, high(stream));
  std::int64_t k0 = low(seed), k1 = high(seed);
  for (int round = 0; round < philox::rounds; ++round) {
    const Halves a = product(c0, philox::multiplier[0]);
    const Halves b = product(c2, philox::multiplier[1]);
    c0 = b.high.bitwise_xor(c1).bitwise_xor(k0);
    c1 = b.low;
    c2 = a.high.bitwise_xor(c3).bitwise_xor(k1);
    c3 = a.low;
    k0 = (k0 + philox::weyl[0]) & kWord;
    k1 = (k1 + philox::weyl[1]) & kWord;
  }
  const at::Tensor words = at::stack({c0, c1, c2, c3}).gather(0, word.unsqueeze(0)).squeeze(0);
  const at::Tensor noise = words.bitwise_right_shift(half * 16).bitwise_and(0xffff);
  // Adding 16 random bits to the dropped bits carries into the kept bits with the right
  // probability.
  const at::Tensor bits = values.contiguous().view(at::kInt).to(at::kLong).bitwise_and(kWord);
  const at::Tensor kept = (bits + noise).bitwise_and(0xffff0000);
  const at::Tensor rounded = kept.to(at::kInt).view(at::kFloat).to(at::kBFloat16);
  return at::where(values.isfinite(), rounded, values.to(at::kBFloat16));
}

}  // namespace tessera::zero
