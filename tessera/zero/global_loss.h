#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/group.h"
#include "tessera/zero/buffers.h"

namespace tessera::zero {

// The loss of a step: what a micro-batch's counts in the mean over all ranks, and their sum.
class GlobalLoss {
 public:
  explicit GlobalLoss(comm::Group group) : group_(std::move(group)) {}

  // A step of so many micro-batches on each rank, which all count alike.
  void begin(int micro_batches);
  // Tokens count alike instead. Collective; the sum is waited for when scale() is called first, for
  // it may stand behind gathers that the forward overlaps.
  void weigh_by_tokens(double tokens_of_this_rank);

  // What the loss of a micro-batch is multiplied by. Throws UsageError if the tokens are no count.
  double scale(Stopwatch& waiting);
  void add(const at::Tensor& scaled_loss);
  double sum() const { return sum_.defined() ? sum_.item<double>() : 0; }
  const at::Tensor& total() const { return sum_; }  // the same where it is; undefined for 0

 private:
  const comm::Group group_;
  double scale_ = 1;
  comm::Work tokens_known_;
  at::Tensor tokens_;  // of all ranks; undefined where nobody gave them, or once scale_ has them
  at::Tensor sum_;
};

}  // namespace tessera::zero
