// Formulas of rules.h on vectors, for one instruction set: see [Note: sets] in core/simd.h.
#pragma once

#include <cmath>

#include "tessera/kernels/rules.h"
#include "tessera/kernels/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Formula<R>(rule, step).update(gradient, value, a, b) returns the new value and updates the states
// a and b in place. Constructed once per shard.
template <class R>
struct Formula;

TESSERA_INLINE float narrowed(double x) { return static_cast<float>(x); }

template <>
struct Formula<rules::AdamW> {
  static constexpr int states = 2;
  float grad_scale, decay, keep1, take1, keep2, take2, root_correction, eps, step_size;

  Formula(const rules::AdamW& settings, const rules::Step& step)
      : grad_scale(narrowed(step.grad_scale)),
        decay(narrowed(1 - step.lr * step.weight_decay)),
        keep1(narrowed(settings.beta1)),
        take1(narrowed(1 - settings.beta1)),
        keep2(narrowed(settings.beta2)),
        take2(narrowed(1 - settings.beta2)),
        root_correction(
            narrowed(1 / std::sqrt(1 - std::pow(settings.beta2, static_cast<double>(step.count))))),
        eps(narrowed(settings.eps)),
        step_size(
            narrowed(-step.lr / (1 - std::pow(settings.beta1, static_cast<double>(step.count))))) {}
  HWY_INLINE F update(F g, F value, F& m, F& v) const {
    g *= grad_scale;
    m = fma(g, splat(take1), m * keep1);
    v = fma(g * g, splat(take2), v * keep2);
    const F denominator = fma(sqrt(v), root_correction, eps);
    return fma(m * step_size, reciprocal(denominator), value * decay);
  }
};

// Template parameters, because SGD's branches are known before the loop.
template <bool has_momentum, bool nesterov>
struct SgdFormula {
  static constexpr int states = has_momentum ? 1 : 0;
  float grad_scale, weight_decay, momentum, lr;

  SgdFormula(const rules::SGD& settings, const rules::Step& step)
      : grad_scale(narrowed(step.grad_scale)),
        weight_decay(narrowed(step.weight_decay)),
        momentum(narrowed(settings.momentum)),
        lr(narrowed(-step.lr)) {}
  HWY_INLINE F update(F g, F value, F& u, F&) const {
    g = fma(value, weight_decay, g * grad_scale);
    if constexpr (has_momentum) {
      u = fma(u, momentum, g);
      g = nesterov ? fma(u, momentum, g) : u;
    }
    return fma(g, lr, value);
  }
};

template <>
struct Formula<rules::Lion> {
  static constexpr int states = 1;
  float grad_scale, decay, keep1, take1, keep2, take2, lr;

  Formula(const rules::Lion& settings, const rules::Step& step)
      : grad_scale(narrowed(step.grad_scale)),
        decay(narrowed(1 - step.lr * step.weight_decay)),
        keep1(narrowed(settings.beta1)),
        take1(narrowed(1 - settings.beta1)),
        keep2(narrowed(settings.beta2)),
        take2(narrowed(1 - settings.beta2)),
        lr(narrowed(step.lr)) {}
  HWY_INLINE F update(F g, F value, F& m, F&) const {
    g *= grad_scale;
    const F direction = fma(g, splat(take1), m * keep1);
    m = fma(g, splat(take2), m * keep2);
    // -lr times the sign of the direction: scaled to huge values, then clamped to ±lr; 0 stays 0.
    const F huge = direction * -0x1p126f * 0x1p126f;
    return fma(value, splat(decay), max(splat(-lr), min(splat(lr), huge)));
  }
};

template <>
struct Formula<rules::Momentum> {
  static constexpr int states = 1;
  float grad_scale, keep, take;
  bool nesterov;

  Formula(const rules::Momentum& settings, const rules::Step& step)
      : grad_scale(narrowed(step.grad_scale)),
        keep(narrowed(settings.momentum)),
        take(narrowed(1 - settings.momentum)),
        nesterov(settings.nesterov) {}
  HWY_INLINE F update(F g, F, F& m, F&) const {
    const F taken = g * grad_scale * take;
    m = fma(m, keep, taken);
    return nesterov ? fma(m, keep, taken) : m;
  }
};

template <>
struct Formula<rules::Descent> {
  static constexpr int states = 0;
  float decay, lr;

  Formula(const rules::Descent& settings, const rules::Step& step)
      : decay(narrowed(1 - step.lr * step.weight_decay)),
        lr(narrowed(-step.lr * settings.scale * step.grad_scale)) {}
  HWY_INLINE F update(F g, F value, F&, F&) const { return fma(g, lr, value * decay); }
};

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
