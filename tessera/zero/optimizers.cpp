// Our own optimizers: one pass of a fused kernel on the CPU, the same formulas in ATen elsewhere.

#include "tessera/zero/optimizers.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tessera/core/philox.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::zero {
namespace {

// Elements of a slice that one thread takes at a time.
constexpr std::int64_t kGrain = 1 << 16;

// What the optimizers have in common: for each parameter the kernel or the formula, whichever its
// type and device have.
class Elementwise : public Update {
 public:
  explicit Elementwise(const UpdateParts& parts)
      : Update(parts.plan, parts.options, parts.group, parts.buffers, parts.gatherer) {}

  void apply(const Reducer& reducer, const std::vector<bool>& used, double lr,
             double scale) override {
    const at::NoGradGuard no_grad;
    ++steps_;
    for (std::size_t i = 0; i < plan_.params.size(); ++i) {
      const Param& p = plan_.params[i];
      const auto index = static_cast<int>(i);
      if (p.bucket < 0 || !used[i]) continue;
      ++updates_[i];
      if (part(p).size == 0) continue;
      const at::Tensor value = gatherer_.param_shard(index);
      const at::Tensor grad = reducer.grad_shard(index);
      const at::Tensor master = master_shard(index);
      const auto param_type = kernel_type(value);
      const auto grad_type = kernel_type(grad);
      if (param_type && grad_type) {
        kernels::ParamSlice slice;
        slice.param_type = *param_type;
        slice.grad_type = *grad_type;
        slice.stream = stream_of(p.name);
        slice.seed = seed_;
        at::parallel_for(0, value.numel(), kGrain, [&](std::int64_t from, std::int64_t to) {
          kernels::ParamSlice piece = slice;
          piece.param = static_cast<std::byte*>(value.data_ptr()) + from * value.element_size();
          piece.grad =
              static_cast<const std::byte*>(grad.const_data_ptr()) + from * grad.element_size();
          piece.master = master.defined() ? master.data_ptr<float>() + from : nullptr;
          piece.count = static_cast<std::size_t>(to - from);
          piece.begin = static_cast<std::uint64_t>(part(p).begin + from);
          fused(index, piece, from, lr * p.policy.lr_scale, scale);
        });
      } else {
        composite(index, value, grad, master, lr * p.policy.lr_scale, scale);
      }
    }
  }

 protected:
  virtual void fused(int param, const kernels::ParamSlice& slice, std::int64_t from, double lr,
                     double scale) = 0;
  virtual void formula(int param, const at::Tensor& value, const at::Tensor& grad, double lr) = 0;
  // How often this parameter was updated, this time included: those that are not always used have
  // had fewer than the engine has made steps.
  std::int64_t updates(int param) const { return updates_[static_cast<std::size_t>(param)]; }

 private:
  void composite(int index, const at::Tensor& value, const at::Tensor& grad,
                 const at::Tensor& master, double lr, double scale) {
    const Param& p = param(index);
    const at::ScalarType type = value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor g = grad.to(type) * scale;
    at::Tensor exact = master.defined() ? master : value.to(type);  // value itself if it is exact
    formula(index, exact, g, lr);
    if (master.defined()) {
      value.copy_(master);
    } else if (value.scalar_type() == at::kBFloat16) {
      value.copy_(
          round_stochastically(exact, part(p).begin, stream_of(p.name), seed_, updates(index)));
    } else if (!exact.is_same(value)) {
      value.copy_(exact);
    }
  }
};

class AdamWUpdate final : public Elementwise {
 public:
  AdamWUpdate(const AdamW& how, const UpdateParts& parts)
      : Elementwise(parts), how_(how), m_(make_state()), v_(make_state()) {
    default_lr_ = how.lr;
  }
  std::vector<std::pair<std::string, at::Tensor>> states(int index) const override {
    return {{"moment1", slice(m_, index)}, {"moment2", slice(v_, index)}};
  }

 private:
  double decay(int index) const { return param(index).policy.decay ? how_.weight_decay : 0; }

  void fused(int index, const kernels::ParamSlice& piece, std::int64_t from, double lr,
             double scale) override {
    const kernels::AdamW how{lr,           how_.beta1,     how_.beta2, how_.eps,
                             decay(index), updates(index), scale};
    kernels::adamw(how, piece, slice(m_, index).data_ptr<float>() + from,
                   slice(v_, index).data_ptr<float>() + from);
  }

  void formula(int index, const at::Tensor& value, const at::Tensor& grad, double lr) override {
    const at::Tensor m = slice(m_, index), v = slice(v_, index);
    const double bias1 = 1 - std::pow(how_.beta1, static_cast<double>(updates(index)));
    const double bias2 = 1 - std::pow(how_.beta2, static_cast<double>(updates(index)));
    value.mul_(1 - lr * decay(index));
    m.mul_(how_.beta1).add_(grad, 1 - how_.beta1);
    v.mul_(how_.beta2).addcmul_(grad, grad, 1 - how_.beta2);
    value.addcdiv_(m, v.sqrt().div_(std::sqrt(bias2)).add_(how_.eps), -lr / bias1);
  }

  const AdamW how_;
  const std::vector<Buffer> m_, v_;
};

class SgdUpdate final : public Elementwise {
 public:
  SgdUpdate(const SGD& how, const UpdateParts& parts) : Elementwise(parts), how_(how) {
    if (how.momentum != 0) velocity_ = make_state();
    default_lr_ = how.lr;
  }
  std::vector<std::pair<std::string, at::Tensor>> states(int index) const override {
    if (velocity_.empty()) return {};
    return {{"velocity", slice(velocity_, index)}};
  }

 private:
  double decay(int index) const { return param(index).policy.decay ? how_.weight_decay : 0; }

  void fused(int index, const kernels::ParamSlice& piece, std::int64_t from, double lr,
             double scale) override {
    const kernels::Sgd how{lr, how_.momentum, decay(index), how_.nesterov, updates(index), scale};
    float* const velocity =
        velocity_.empty() ? nullptr : slice(velocity_, index).data_ptr<float>() + from;
    kernels::sgd(how, piece, velocity);
  }

  void formula(int index, const at::Tensor& value, const at::Tensor& grad, double lr) override {
    at::Tensor step = grad.add(value, decay(index));
    if (!velocity_.empty()) {
      const at::Tensor velocity = slice(velocity_, index);
      velocity.mul_(how_.momentum).add_(step);
      step = how_.nesterov ? step.add(velocity, how_.momentum) : velocity;
    }
    value.sub_(step, lr);
  }

  const SGD how_;
  std::vector<Buffer> velocity_;
};

// The two halves of a product of 32-bit numbers, held in 64-bit tensors.
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

at::Tensor round_stochastically(const at::Tensor& values, std::int64_t begin, std::uint64_t stream,
                                std::uint64_t seed, std::int64_t step) {
  constexpr std::int64_t kWord = 0xffffffff;
  const at::Tensor index =
      at::arange(begin, begin + values.numel(), at::device(values.device()).dtype(at::kLong));
  // [Note: noise] in kernels/optimizer.h: which block, word and half an element takes.
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
  // Adding 16 random bits below those that stay carries into them with the right probability.
  const at::Tensor bits = values.contiguous().view(at::kInt).to(at::kLong).bitwise_and(kWord);
  const at::Tensor kept = (bits + noise).bitwise_and(0xffff0000);
  const at::Tensor rounded = kept.to(at::kInt).view(at::kFloat).to(at::kBFloat16);
  return at::where(values.isfinite(), rounded, values.to(at::kBFloat16));
}

std::unique_ptr<Update> make_update(const AdamW& how, const UpdateParts& parts) {
  return std::make_unique<AdamWUpdate>(how, parts);
}
std::unique_ptr<Update> make_update(const SGD& how, const UpdateParts& parts) {
  return std::make_unique<SgdUpdate>(how, parts);
}

}  // namespace tessera::zero
