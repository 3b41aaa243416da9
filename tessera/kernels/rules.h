// Optimizers: their names, settings and states.
//
// [Note: rules] Most treat every element alone. A new one of these is a struct here, entered in
// `Elementwise`; its formula on vectors, in rules_impl.h; and its formula in ATen, for devices and
// types that have no kernel, in zero/formulas.h. Engine, trainer and checkpoints know the rest from
// these. Others need whole matrices, and are entered in `ByMatrix`: see [Note: matrices] in
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

// What differs from step to step, and from parameter to parameter: these are the learning rate and
// the decay that count, not those of the rule.
struct Step {
  double lr = 1e-3;
  double weight_decay = 0;
  std::int64_t count = 1;  // updates of the parameter, this one included
  double grad_scale = 1;   // gradients are multiplied by it first: clip factor, 1 / tokens, …
};

// A rule has settings and up to two states: fp32 numbers for each element, zero at first, by the
// names under which they are saved.
using States = std::vector<std::string>;

// As torch::optim::AdamW does it; decay is decoupled, and 0 makes it Adam:
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

// As torch::optim::SGD without dampening does it:
//   g += weight_decay·p;  u = momentum·u + g;  p -= lr · (nesterov ? g + momentum·u : u)
struct SGD {
  static constexpr std::string_view name = "sgd";
  double lr = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  States states() const { return momentum == 0 ? States{} : States{"velocity"}; }
};

// Every element moves by lr, in the direction of its momentum (Chen et al., 2023); wants a third to
// a tenth of AdamW's learning rate, and as many times its decay:
//   p *= 1 - lr·weight_decay;  p -= lr · sign(beta1·m + (1-beta1)·g);  m = beta2·m + (1-beta2)·g
struct Lion {
  static constexpr std::string_view name = "lion";
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  States states() const { return {"moment1"}; }
};

// For the hidden matrices of a network: momentum that is made orthogonal, so that a step moves all
// directions of a matrix alike (Jordan et al., 2024). Everything else (vectors, and what
// zero::ParamPolicy::elementwise names: embeddings and heads should be among them) gets AdamW. A
// step of a matrix is
//   p *= 1 - lr·weight_decay;  p -= lr · 0.2·sqrt(max(rows, columns)) · orthogonalised(momentum)
// The factor gives it the size of a step of AdamW, so that both do well with one learning rate.
struct Muon {
  static constexpr std::string_view name = "muon";
  double lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  AdamW elementwise = {};  // a learning rate given to step() changes its own in proportion
  States states() const { return elementwise.states(); }
  States matrix_states() const { return {"momentum"}; }
};

// What Muon does before and after matrices are whole. The first writes a direction where other
// rules write the new value:
//   m = momentum·m + (1-momentum)·g;  direction = nesterov ? momentum·m + (1-momentum)·g : m
struct Momentum {
  double momentum = 0.95;
  bool nesterov = true;
  States states() const { return {"momentum"}; }
};
// The second takes a direction for the gradient:  p = (1 - lr·weight_decay)·p - scale·lr·g
struct Descent {
  double scale = 1;
  States states() const { return {}; }
};

// All alternatives of two variants.
template <class A, class B>
struct Join;
// Of two lists of alternatives.
template <class... A, class... B>
struct Join<std::variant<A...>, std::variant<B...>> {
  // A's first, then B's.
  using type = std::variant<A..., B...>;
};

// Those that treat every element alone, so that any shard of a parameter will do.
using Elementwise = std::variant<AdamW, SGD, Lion>;
// Those that need a whole matrix.
using ByMatrix = std::variant<Muon>;
using Named = Join<Elementwise, ByMatrix>::type;  // all of them, as users know them
// What there is a kernel for.
using Rule = Join<Elementwise, std::variant<Momentum, Descent>>::type;

// f(R{}) for every optimizer R.
template <class F>
void for_each(F&& f) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (f(std::variant_alternative_t<i, Named>{}), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Named>>{});
}

// What named() takes.
inline std::vector<std::string> names() {
  std::vector<std::string> result;
  for_each([&](const auto& rule) { result.emplace_back(rule.name); });
  return result;
}

// Sets the settings that `rule` has from the members of the same name.
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

// The optimizer of that name, one of names(), with these settings. Throws UsageError for others.
template <class Settings>
Named named(std::string_view name, const Settings& from) {
  Named result;
  bool found = false;
  std::string wanted;
  for_each([&](auto rule) {
    wanted += (wanted.empty() ? "" : ", ") + std::string(rule.name);
    if (rule.name != name) return;
    take_settings(rule, from);
    result = rule;
    found = true;
  });
  if (!found) {
    throw UsageError("optimizer: got " + std::string(name) + ", wanted one of " + wanted);
  }
  return result;
}

}  // namespace tessera::rules
