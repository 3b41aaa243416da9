#pragma once

#include <ATen/core/grad_mode.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::nn {

// [Note: second derivatives] Backwards that run kernels of our own, read what forward computed
// outside autograd, or talk to other ranks leave no graph behind them. With create_graph autograd
// would take their results for constants: second derivatives without them, and nobody told. They
// call this first. (Autograd records gradients in a backward only if create_graph asks for it.)
inline void refuse_second_derivatives(const char* operation) {
  if (!at::GradMode::is_enabled()) return;
  throw UsageError(str("backward of ", operation,
                       " with create_graph: it has first derivatives only; compute what is "
                       "differentiated twice with torch's own operations, without recomputation"));
}

}  // namespace tessera::nn
