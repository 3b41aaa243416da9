#pragma once

#include <memory>
#include <string>

#include "tessera/core/text.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

std::unique_ptr<Update> make_rule_update(const rules::Elementwise& how,
                                         const UpdateContext& context);
// For moments with fewer than 32 bits, and state that is not in the memory of the device.
std::unique_ptr<Update> make_record_update(const rules::Elementwise& how,
                                           const UpdateContext& context);
std::unique_ptr<Update> make_muon_update(const Muon& how, const UpdateContext& context);
std::unique_ptr<Update> make_torch_update(const TorchOptimizer& how, const UpdateContext& context);

// Returns the name and the settings of a rule: "adamw (lr 0.001, beta1 0.9, …)".
template <class Rule>
std::string settings_text(const Rule& rule) {
  std::string text = str(rule.name, " (lr ", rule.lr);
  if constexpr (requires { rule.beta1; }) text += str(", beta1 ", rule.beta1);
  if constexpr (requires { rule.beta2; }) text += str(", beta2 ", rule.beta2);
  if constexpr (requires { rule.eps; }) text += str(", eps ", rule.eps);
  if constexpr (requires { rule.momentum; }) text += str(", momentum ", rule.momentum);
  if constexpr (requires { rule.nesterov; }) text += rule.nesterov ? ", nesterov" : "";
  text += str(", weight_decay ", rule.weight_decay);
  if constexpr (requires { rule.elementwise; }) text += ", " + settings_text(rule.elementwise);
  return text + ")";
}

// Returns an approximation of the nearest (semi-)orthogonal matrix, as Muon applies it to momentum.
at::Tensor orthogonalized(const at::Tensor& matrix);
// Same for a stack of matrices [count, rows, columns], with rows ≤ columns and Frobenius norms of
// at most 1, in the type of `x`.
at::Tensor newton_schulz(at::Tensor x);
// Returns the factor of the step of a matrix: rules::Descent::scale.
double muon_scale(std::int64_t rows, std::int64_t columns);

}  // namespace tessera::zero
