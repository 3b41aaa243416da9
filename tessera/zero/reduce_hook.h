#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/comm/group.h"

namespace tessera::zero {

// Gradients of one bucket, for a ReduceHook. The tensors are views of the engine's memory, the same
// in every step.
struct GradBucket {
  // Gradient of one parameter.
  struct Param {
    std::string name;
    at::Tensor grad;  // view of GradBucket::grads in the shape of the parameter
  };
  int index = 0;      // in Engine::buckets()
  bool last = false;  // the hook has been called for all other buckets of this step
  std::string label;  // for comm::Call::label; the same on every rank
  // Flat and contiguous, of the type of the layout's gradients. Each parameter is followed by
  // padding, which the engine ignores.
  at::Tensor grads;
  std::vector<Param> params;
};

// Sums that a hook has started to compute: a collective, or a function that the engine calls when
// it needs them. A default-constructed PendingSums is complete.
using PendingSums = std::variant<comm::Work, std::function<void()>>;

// [Note: reduce hooks] Function that replaces the reduction of gradients over the data-parallel
// ranks, like a communication hook of PyTorch's DDP. This one does what the engine does without:
//   options.reduce_hook = [](const GradBucket& bucket, const Group& data) -> PendingSums {
//     return data.all_reduce(bucket.grads, {.label = bucket.label});
//   };
// On completion, bucket.grads must hold the sum over all ranks of `data`, with the same bits on
// every rank. The engine divides the loss before backward, by the numbers of ranks and
// micro-batches or by the number of tokens, so this sum is the mean gradient. In layout fp16 it
// also has the factor of the loss scale. A gradient that a rank did not compute is zero.
//
// The engine calls the hook once for each bucket and step, in the same order on all ranks: in the
// last backward() of the step, as soon as the gradients of the bucket are complete, or at its end
// without overlap_grad_reduce. A rank that does not run that backward() calls it in step(). The
// thread is the one that computes the gradients: the caller's on the CPU, autograd's on a GPU, with
// the stream of backward as the current stream. The engine completes all sums in the order of
// Engine::buckets() in step(), finish_reduction(), full_gradients() or discard(), on the calling
// thread. Hook and function may both use `data`.
//
// An exception ends the call of the engine, and its message names the bucket. Then leave, and the
// other ranks throw PeerError instead of waiting; or call discard() on all ranks, which repeats the
// call that failed.
using ReduceHook = std::function<PendingSums(const GradBucket& bucket, const comm::Group& data)>;

}  // namespace tessera::zero
