#pragma once

#include <functional>
#include <vector>

#include "tessera/zero/plan.h"

namespace tessera::zero {

// [Note: matrices] A rule that needs whole matrices meets shards that end anywhere. For the update
// each matrix has one owner: N matrices at a time travel so that rank r has the r-th of them whole,
// the owners compute side by side, and the results travel back. Nothing is kept between steps, so
// buffers, stages and checkpoints know nothing of it, and since every matrix is computed once, from
// the same bits, the stage does not show in the result.
//
// With shards (stages 1 to 3) these are two all-to-alls of fp32 shards: a rank sends
// 2 · (N-1) · shard · 4 bytes for N matrices, where `shard` is the largest among them; matrices of
// like size travel together, so that little of it is padding. Where every rank has all elements
// (stage 0) only the results travel, in one all-gather: (N-1) · numel · 4 bytes.
class MatrixExchange {
 public:
  MatrixExchange(const Plan& plan, const comm::Group& group, bool sharded);

  // Writes what this rank holds of a matrix to flat memory of that length.
  using Collect = std::function<void(int param, const at::Tensor& held)>;
  // Computes on the whole matrix, of the parameter's shape, by its owner; returns one like it.
  using Compute = std::function<at::Tensor(int param, const at::Tensor& matrix)>;
  // Takes what this rank holds of the result.
  using Apply = std::function<void(int param, const at::Tensor& held)>;

  // Collective: all ranks name the same matrices, all on one device and of one type.
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
