#pragma once

#include <memory>

#include "tessera/zero/update.h"

namespace tessera::zero {

std::unique_ptr<Update> make_rule_update(const rules::Named& how, const UpdateContext& context);
std::unique_ptr<Update> make_torch_update(const TorchOptimizer& how, const UpdateContext& context);

}  // namespace tessera::zero
