#pragma once

#include <ATen/core/grad_mode.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::nn {

// [Note: second derivatives] A backward that runs Tessera's own kernels, reads values that forward
// computed outside autograd, or communicates with other ranks records no graph. With create_graph,
// autograd would treat its results as constants and silently compute wrong second derivatives. Such
// backwards therefore call this first. (Autograd records gradients during a backward only with
// create_graph.)
inline void refuse_second_derivatives(const char* operation) {
  if (!at::GradMode::is_enabled()) return;
  throw UsageError(str("Backward of ", operation,
                       " with create_graph: it supports first derivatives only. Use torch's own "
                       "operations, without recomputation, for what is differentiated twice."));
}

}  // namespace tessera::nn
