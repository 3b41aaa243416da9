#pragma once

#include <memory>

#include "tessera/zero/update.h"

namespace tessera::zero {

std::unique_ptr<Update> make_rule_update(const rules::Elementwise& how,
                                         const UpdateContext& context);
std::unique_ptr<Update> make_muon_update(const Muon& how, const UpdateContext& context);
std::unique_ptr<Update> make_torch_update(const TorchOptimizer& how, const UpdateContext& context);

// The nearest (semi-)orthogonal matrix, roughly: what Muon makes of a momentum.
at::Tensor orthogonalised(const at::Tensor& matrix);

}  // namespace tessera::zero
