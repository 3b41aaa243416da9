#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/core/matrix_batches.h"
#include "tessera/kernels/cuda/optimizer.h"
#include "tessera/nn/gpu.h"
#include "tessera/zero/update.h"

namespace tessera::zero {

// Update of Muon's matrices on a GPU: momentum, exchange, orthogonalization of all matrices of
// equal shape at once, and descent. Decisions are read on the device and addresses do not change,
// so a CUDA graph can contain the update. Every matrix takes part in every step; kernels skip those
// whose step is not active. The slow version is MuonUpdate::apply().
class MatricesOnDevice {
 public:
  // Allocates the buffers of the exchange. They live as long as the engine.
  MatricesOnDevice(const UpdateContext& context, const Update& update, const Reducer& reducer,
                   const MatrixRule& rule);

  // Computes the numbers of this step. `decided`: pointers of kernels::cuda::decide().
  void decide(const kernels::cuda::Decision& decided);
  // Collective. Waits for nothing if the group's backend works on the device.
  void update();

 private:
  // Pieces of one launch of kernels::cuda::update().
  struct Table {
    kernels::cuda::UpdateTypes types;
    at::Tensor pieces;
    std::size_t count = 0;
  };
  // Consecutive matrices of this rank with the same sizes and strides.
  struct MatrixRun {
    const Param* param = nullptr;  // the first
    std::int64_t begin = 0;        // element of the row at which the first one begins
    std::int64_t step = 0;         // elements from one to the next
    std::int64_t count = 0;
  };
  // Runs of matrices with the same shape, or the transposed one.
  struct Stack {
    std::int64_t rows = 0, columns = 0;  // rows ≤ columns
    std::vector<MatrixRun> runs;
  };
  struct Batch {
    std::int64_t row = 0;  // elements
    std::vector<Table> momentum, descent;
    std::vector<Stack> stacks;
  };
  void add_batch(const MatrixBatch& rounds, const std::vector<int>& order, const Update& update,
                 const Reducer& reducer, std::uint64_t seed);
  // Copies a run of matrices out of the batch's buffer: padded and flat, a row for each.
  at::Tensor gathered(const Batch& batch, const MatrixRun& run) const;
  void orthogonalize(const Batch& batch, const Stack& stack) const;
  at::Tensor rows_of(const at::Tensor& buffer, const Batch& batch) const;
  nn::gpu::StreamOf stream() const { return nn::gpu::StreamOf(scales_); }

  const Plan& plan_;
  const std::shared_ptr<memory::Ledger> ledger_;
  const comm::Group group_;
  const bool sharded_;  // with one rank nothing is
  const rules::Momentum momentum_;
  at::Tensor out_, in_;  // fp32, a row per rank; in_ is undefined with one rank
  at::Tensor scales_, momentum_steps_, descent_steps_;
  std::vector<Batch> batches_;
};

}  // namespace tessera::zero
