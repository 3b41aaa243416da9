// Optimizers: their names, settings and states.
//
// [Note: rules] Most optimizers are elementwise. Adding one takes a struct here, listed in
// `Elementwise`; its formula on vectors, in rules_impl.h; and its formula in ATen, for devices and
// types without a kernel, in zero/formulas.h. Engine, trainer and checkpoints derive the rest from
// these. Optimizers that need whole matrices are listed in `ByMatrix`: see [Note: matrices] in
// zero/matrix_exchange.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/core/errors.h"

namespace tessera::rules {

// Inputs of one update that vary by step and by parameter. lr and weight_decay here override those
// of the rule.
struct Step {
  double lr = 1e-3;
  double weight_decay = 0;
  std::int64_t count = 1;  // number of updates of the parameter, including this one
  double grad_scale = 1;   // multiplies the gradients first: clip factor, 1 / tokens, …
};

// Names under which the states of a rule are saved. A rule has settings and up to two states: one
// fp32 number per element, initially zero.
using States = std::vector<std::string>;

// Same as torch::optim::AdamW. Weight decay is decoupled; weight_decay = 0 gives Adam.
//   p *= 1 - lr·weight_decay;  m = beta1·m + (1-beta1)·g;  v = beta2·v + (1-beta2)·g²
//   p -= lr / (1-beta1^count) · m / (sqrt(v) / sqrt(1-beta2^count) + eps)
struct AdamW {
  static constexpr std::string_view name = "adamw";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  States states() const { return {"moment1", "moment2"}; }
};

// Same as torch::optim::SGD without dampening:
//   g += weight_decay·p;  u = momentum·u + g;  p -= lr · (nesterov ? g + momentum·u : u)
struct SGD {
  static constexpr std::string_view name = "sgd";
  double lr = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  States states() const { return momentum == 0 ? States{} : States{"velocity"}; }
};

// Moves every element by lr in the direction of its momentum (Chen et al., 2023). Needs a third to
// a tenth of AdamW's learning rate, and three to ten times its weight decay:
//   p *= 1 - lr·weight_decay;  p -= lr · sign(beta1·m + (1-beta1)·g);  m = beta2·m + (1-beta2)·g
struct Lion {
  static constexpr std::string_view name = "lion";
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  States states() const { return {"moment1"}; }
};

// For the hidden matrices of a network: orthogonalized momentum, so that a step has the same size
// in all directions of a matrix (Jordan et al., 2024). AdamW updates everything else: vectors, and
// the parameters marked zero::ParamPolicy::elementwise, which should include embeddings and heads.
// The step of a matrix is
//   p *= 1 - lr·weight_decay;  p -= lr · 0.2·sqrt(max(rows, columns)) · orthogonalized(momentum)
// The factor matches the step size of AdamW, so that one learning rate suits both.
struct Muon {
  static constexpr std::string_view name = "muon";
  double lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  AdamW elementwise = {};  // a learning rate passed to step() scales its lr in proportion
  States states() const { return elementwise.states(); }
  States matrix_states() const { return {"momentum"}; }
};

// Muon's update before the matrices are gathered. Writes a direction where other rules write the
// new value:
//   m = momentum·m + (1-momentum)·g;  direction = nesterov ? momentum·m + (1-momentum)·g : m
struct Momentum {
  double momentum = 0.95;
  bool nesterov = true;
  States states() const { return {"momentum"}; }
};
// Muon's update after the matrices are gathered. Takes a direction as gradient:
//   p = (1 - lr·weight_decay)·p - scale·lr·g
struct Descent {
  double scale = 1;
  States states() const { return {}; }
};

// Variant with the alternatives of two variants.
template <class A, class B>
struct Join;
// Specialization that unpacks the alternatives.
template <class... A, class... B>
struct Join<std::variant<A...>, std::variant<B...>> {
  // A's first, then B's.
  using type = std::variant<A..., B...>;
};

// Elementwise optimizers. They work on any shard of a parameter.
using Elementwise = std::variant<AdamW, SGD, Lion>;
// Optimizers that need whole matrices.
using ByMatrix = std::variant<Muon>;
using Named = Join<Elementwise, ByMatrix>::type;  // all optimizers that a user can name
// Update rules that have a kernel.
using Rule = Join<Elementwise, std::variant<Momentum, Descent>>::type;

// Calls f(R{}) for every optimizer R.
template <class F>
void for_each(F&& f) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (f(std::variant_alternative_t<i, Named>{}), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Named>>{});
}

// Returns the names that named() accepts.
inline std::vector<std::string> names() {
  std::vector<std::string> result;
  for_each([&](const auto& rule) { result.emplace_back(rule.name); });
  return result;
}

// Copies the settings that `rule` has from the members of the same name.
template <class R, class Settings>
void take_settings(R& rule, const Settings& from) {
  if constexpr (requires { rule.lr = from.lr; }) rule.lr = from.lr;
  if constexpr (requires { rule.beta1 = from.beta1; }) rule.beta1 = from.beta1;
  if constexpr (requires { rule.beta2 = from.beta2; }) rule.beta2 = from.beta2;
  if constexpr (requires { rule.eps = from.eps; }) rule.eps = from.eps;
  if constexpr (requires { rule.momentum = from.momentum; }) rule.momentum = from.momentum;
  if constexpr (requires { rule.weight_decay = from.weight_decay; }) {
    rule.weight_decay = from.weight_decay;
  }
  if constexpr (requires { rule.elementwise; }) take_settings(rule.elementwise, from);
}

// Returns the optimizer called `name` with these settings. Throws UsageError if names() does not
// contain `name`.
template <class Settings>
Named named(std::string_view name, const Settings& from) {
  Named result;
  bool found = false;
  std::string allowed;
  for_each([&](auto rule) {
    allowed += (allowed.empty() ? "" : ", ") + std::string(rule.name);
    if (rule.name != name) return;
    take_settings(rule, from);
    result = rule;
    found = true;
  });
  if (!found) {
    throw UsageError("optimizer " + std::string(name) + ": must be one of " + allowed + ".");
  }
  return result;
}

}  // namespace tessera::rules
