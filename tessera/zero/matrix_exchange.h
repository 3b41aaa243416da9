#pragma once

#include <functional>
#include <vector>

#include "tessera/zero/plan.h"

namespace tessera::zero {

// [Note: matrices] Exchange for update rules that need whole matrices, which shards do not respect.
// For the update each matrix has one owner: N matrices at a time are exchanged so that rank r has
// the r-th of them whole, the owners compute in parallel, and the results are sent back. Nothing is
// kept between steps, so buffers, stages and checkpoints are unaffected. Every matrix is computed
// once, from the same bits, so the result does not depend on the stage.
//
// With shards (stages 1 to 3) this takes two all-to-alls of fp32 shards: a rank sends
// 2 · (N-1) · shard · 4 bytes for N matrices, where `shard` is the largest of their shards.
// Matrices of similar size are exchanged together to reduce padding. If every rank has all elements
// (stage 0), only the results are sent, in one all-gather: (N-1) · numel · 4 bytes.
class MatrixExchange {
 public:
  MatrixExchange(const Plan& plan, const comm::Group& group, bool sharded);

  // Writes this rank's elements of a matrix to flat memory of that length.
  using Collect = std::function<void(int param, const at::Tensor& held)>;
  // Computes the result for a whole matrix on its owner: a matrix of the same shape.
  using Compute = std::function<at::Tensor(int param, const at::Tensor& matrix)>;
  // Applies this rank's elements of the result.
  using Apply = std::function<void(int param, const at::Tensor& held)>;

  // Collective: all ranks pass the same matrices, which are on one device and of one type.
  void run(std::vector<int> params, at::TensorOptions options, const Collect& collect,
           const Compute& compute, const Apply& apply) const;

 private:
  using Round = std::vector<const Param*>;
  void whole_round(const Round& round, const std::vector<int>& params, at::TensorOptions options,
                   const Collect& collect, const Compute& compute, const Apply& apply) const;
  void shard_round(const Round& round, const std::vector<int>& params, at::TensorOptions options,
                   const Collect& collect, const Compute& compute, const Apply& apply) const;

  const Plan& plan_;
  const comm::Group group_;
  const bool sharded_;
};

}  // namespace tessera::zero
