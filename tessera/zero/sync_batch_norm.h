#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"

namespace tessera::zero {

// Batch norm over the batches of all ranks of a group. Each rank may have any number of samples,
// including 0: output, gradients and running statistics are those of one process with all samples.
// Each rank has its own part of the gradients of weight and bias; the engine sums them. Inputs may
// have any number of dims; dim 1 is the channels. As in torch's BatchNorm: momentum (none:
// cumulative average), affine, track_running_stats, eval() and the names of the statistics.
//
// Forward gathers 2·C + 1 fp64 numbers from each rank, backward sums 2·C. All ranks of the group
// must run it the same number of times and in the same order. A separate group (Group::subset)
// keeps these calls apart from those of an engine if ranks may run different operations.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // With torch's defaults.
  SyncBatchNormImpl(std::int64_t features, comm::Group group);
  // With torch's own options.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group);

  // Collective in training, local in eval().
  at::Tensor forward(const at::Tensor& x);
  void reset() override;  // weight 1, bias 0, no statistics
  // Prints in the style of torch's norms.
  void pretty_print(std::ostream& stream) const override;
  // Shares the tensors of another norm.
  void adopt(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
             const at::Tensor& running_var, const at::Tensor& num_batches_tracked);

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                                    // undefined without affine
  at::Tensor running_mean, running_var, num_batches_tracked;  // undefined if they are not tracked

 private:
  void track(const at::Tensor& mean, const at::Tensor& variance, double count);
  comm::Group group_;
};
TORCH_MODULE(SyncBatchNorm);

// Returns a norm over a group that shares the parameters and statistics of a
// torch::nn::BatchNorm1d, 2d or 3d. Throws UsageError for other modules.
SyncBatchNorm synchronized(const torch::nn::Module& batch_norm, const comm::Group& group);

// Collective. Replaces the batch norms in the Sequentials of a model, including nested ones, by
// norms over a new group with the same ranks, and returns their names. A norm that is a member of
// another module cannot be replaced: UsageError then names it, and nothing is changed; declare that
// member as SyncBatchNorm. Call it before making the engine.
std::vector<std::string> convert_batch_norms(torch::nn::Module& model, const comm::Group& group);

}  // namespace tessera::zero

namespace tessera {
using zero::convert_batch_norms;
using zero::SyncBatchNorm;
}  // namespace tessera
