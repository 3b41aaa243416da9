#pragma once

namespace tessera::zero {

// One backward pass of a model chunk in a pipeline.
struct BackwardPass {
  int model_chunk = 0;  // [Note: model chunks] in model_axes.h
  // Some gradients are computed later, outside autograd. finish_pass() then ends the pass.
  bool deferred = false;
  // True: backward of one forward while other forwards are pending, as in 1F1B. False: backward of
  // all forwards since the last backward.
  bool of_one_forward = false;
};

}  // namespace tessera::zero
