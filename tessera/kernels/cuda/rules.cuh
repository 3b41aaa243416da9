// Formulas of kernels/rules.h for one element on a GPU, with the same operations as
// kernels/rules_impl.h. Products and sums are explicit, so that the compiler does not contract them
// in one place and not in another.
#pragma once

#include <cmath>
#include <cstdint>

#include "tessera/kernels/rules.h"

namespace tessera::kernels::cuda {

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// Formula<R>(rule, …).update(gradient, value, a, b) returns the new value. Constructed once per
// parameter; contains only numbers.
template <class R>
struct Formula;

template <>
struct Formula<rules::AdamW> {
  static constexpr int states = 2;
  float grad_scale, decay, keep1, take1, keep2, take2, root_correction, eps, step_size;

  __host__ __device__ Formula(const rules::AdamW& settings, double lr, double weight_decay,
                              std::int64_t count, double scale)
      : grad_scale(static_cast<float>(scale)),
        decay(static_cast<float>(1 - lr * weight_decay)),
        keep1(static_cast<float>(settings.beta1)),
        take1(static_cast<float>(1 - settings.beta1)),
        keep2(static_cast<float>(settings.beta2)),
        take2(static_cast<float>(1 - settings.beta2)),
        root_correction(
            static_cast<float>(1 / sqrt(1 - pow(settings.beta2, static_cast<double>(count))))),
        eps(static_cast<float>(settings.eps)),
        step_size(static_cast<float>(-lr / (1 - pow(settings.beta1, static_cast<double>(count))))) {
  }
  __device__ __forceinline__ float update(float g, float value, float& m, float& v) const {
    g = times(g, grad_scale);
    m = fused(g, take1, times(m, keep1));
    v = fused(times(g, g), take2, times(v, keep2));
    const float denominator = fused(__fsqrt_rn(v), root_correction, eps);
    return fused(times(m, step_size), __frcp_rn(denominator), times(value, decay));
  }
};

template <bool has_momentum, bool nesterov>
struct SgdFormula {
  static constexpr int states = has_momentum ? 1 : 0;
  float grad_scale, weight_decay, momentum, lr;

  __host__ __device__ SgdFormula(const rules::SGD& settings, double step_lr, double decay,
                                 std::int64_t, double scale)
      : grad_scale(static_cast<float>(scale)),
        weight_decay(static_cast<float>(decay)),
        momentum(static_cast<float>(settings.momentum)),
        lr(static_cast<float>(-step_lr)) {}
  __device__ __forceinline__ float update(float g, float value, float& u, float&) const {
    g = fused(value, weight_decay, times(g, grad_scale));
    if constexpr (has_momentum) {
      u = fused(u, momentum, g);
      g = nesterov ? fused(u, momentum, g) : u;
    }
    return fused(g, lr, value);
  }
};

template <>
struct Formula<rules::Lion> {
  static constexpr int states = 1;
  float grad_scale, decay, keep1, take1, keep2, take2, lr;

  __host__ __device__ Formula(const rules::Lion& settings, double step_lr, double weight_decay,
                              std::int64_t, double scale)
      : grad_scale(static_cast<float>(scale)),
        decay(static_cast<float>(1 - step_lr * weight_decay)),
        keep1(static_cast<float>(settings.beta1)),
        take1(static_cast<float>(1 - settings.beta1)),
        keep2(static_cast<float>(settings.beta2)),
        take2(static_cast<float>(1 - settings.beta2)),
        lr(static_cast<float>(step_lr)) {}
  __device__ __forceinline__ float update(float g, float value, float& m, float&) const {
    g = times(g, grad_scale);
    const float direction = fused(g, take1, times(m, keep1));
    m = fused(g, take2, times(m, keep2));
    // As on the CPU: scaled to huge values, then clamped to ±lr; 0 stays 0.
    const float huge = times(times(direction, -0x1p126f), 0x1p126f);
    return fused(value, decay, fmaxf(-lr, fminf(lr, huge)));
  }
};

template <>
struct Formula<rules::Momentum> {
  static constexpr int states = 1;
  float grad_scale, keep, take, nesterov;

  __host__ __device__ Formula(const rules::Momentum& settings, double, double, std::int64_t,
                              double scale)
      : grad_scale(static_cast<float>(scale)),
        keep(static_cast<float>(settings.momentum)),
        take(static_cast<float>(1 - settings.momentum)),
        nesterov(settings.nesterov ? 1.0f : 0.0f) {}
  __device__ __forceinline__ float update(float g, float, float& m, float&) const {
    const float taken = times(times(g, grad_scale), take);
    m = fused(m, keep, taken);
    return nesterov != 0 ? fused(m, keep, taken) : m;
  }
};

template <>
struct Formula<rules::Descent> {
  static constexpr int states = 0;
  float decay, lr;

  __host__ __device__ Formula(const rules::Descent& settings, double step_lr, double weight_decay,
                              std::int64_t, double scale)
      : decay(static_cast<float>(1 - step_lr * weight_decay)),
        lr(static_cast<float>(-step_lr * settings.scale * scale)) {}
  __device__ __forceinline__ float update(float g, float value, float&, float&) const {
    return fused(g, lr, times(value, decay));
  }
};

// Calls f.operator()<Formula>(settings) with the formula of the rule.
template <class F>
void with_formula(const rules::Rule& rule, F&& f) {
  std::visit(
      [&](const auto& settings) {
        using R = std::decay_t<decltype(settings)>;
        if constexpr (std::is_same_v<R, rules::SGD>) {
          if (settings.momentum == 0) {
            f.template operator()<SgdFormula<false, false>>(settings);
          } else if (settings.nesterov) {
            f.template operator()<SgdFormula<true, true>>(settings);
          } else {
            f.template operator()<SgdFormula<true, false>>(settings);
          }
        } else {
          f.template operator()<Formula<R>>(settings);
        }
      },
      rule);
}

}  // namespace tessera::kernels::cuda
