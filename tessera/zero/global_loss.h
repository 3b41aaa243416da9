#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/group.h"
#include "tessera/zero/buffers.h"

namespace tessera::zero {

// Global loss of a step: the weight of each micro-batch in the mean over all ranks, and the
// weighted sum.
class GlobalLoss {
 public:
  explicit GlobalLoss(comm::Group group) : group_(std::move(group)) {}

  // Begins a step with this number of micro-batches per rank, all of equal weight.
  void begin(int micro_batches);
  // Gives tokens equal weight instead. Collective. The first scale() waits for the sum, because it
  // may be queued behind gathers that overlap the forward.
  void weigh_by_tokens(double tokens_of_this_rank);

  // Returns the factor of a micro-batch's loss. Throws UsageError if the total of tokens is
  // negative or not finite.
  double scale(Stopwatch& waiting);
  void add(const at::Tensor& scaled_loss);
  double sum() const { return sum_.defined() ? sum_.item<double>() : 0; }
  const at::Tensor& total() const { return sum_; }  // the sum on its device; undefined for 0

 private:
  const comm::Group group_;
  double scale_ = 1;
  comm::Work tokens_known_;
  at::Tensor tokens_;  // of all ranks; undefined if not given, or once scale_ includes them
  at::Tensor sum_;
};

}  // namespace tessera::zero
