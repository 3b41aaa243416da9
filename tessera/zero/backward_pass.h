#pragma once

namespace tessera::zero {

// A backward pass of a part of the model, as a pipeline makes them.
struct BackwardPass {
  int model_chunk = 0;  // [Note: model chunks] in options.h
  // Some gradients of the pass come later, from elsewhere than autograd: finish_pass() ends it.
  bool deferred = false;
  // The backward of one forward while others wait for theirs, as in 1F1B. False: of all forwards
  // since the last backward.
  bool of_one_forward = false;
};

}  // namespace tessera::zero
