#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"

namespace tessera::zero {

// Batch norm over the batches of all ranks of a group, however many samples each of them has (none,
// too): output, gradients and running statistics are those of one process with all samples. Of the
// gradients of weight and bias a rank has its own part; the engine adds them up. Inputs of any
// number of dims, the channels are dim 1. As for torch's BatchNorm: momentum (none: cumulative
// average), affine, track_running_stats, eval(); the statistics' names are the same, too.
//
// Forward gathers 2·C + 1 numbers in fp64 of each rank, backward adds up 2·C: all ranks of the
// group run it equally often and in the same order. A group of its own (Group::subset) keeps these
// calls apart from an engine's, where what ranks compute may differ.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // With torch's defaults.
  SyncBatchNormImpl(std::int64_t features, comm::Group group);
  // With torch's own options.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, comm::Group group);

  // Collective in training; in eval() a rank is on its own.
  at::Tensor forward(const at::Tensor& x);
  void reset() override;  // to the start: weight 1, bias 0, no statistics
  // As torch prints its own norms.
  void pretty_print(std::ostream& stream) const override;
  // Takes tensors over from another norm, as they are.
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

// The same norm over a group: with the parameters and statistics of a torch::nn::BatchNorm1d, 2d or
// 3d, which both then share. Throws UsageError for other modules.
SyncBatchNorm synchronised(const torch::nn::Module& batch_norm, const comm::Group& group);

// Collective. Replaces the batch norms in the Sequentials of a model (in those inside them, too) by
// norms over a group of their own with the same ranks; returns their names. A norm that is a
// member of a module of yours is called through that member, which nobody else can replace: it is a
// UsageError that names it, and nothing is changed; make it a SyncBatchNorm there. Before the
// engine is made.
std::vector<std::string> convert_batch_norms(torch::nn::Module& model, const comm::Group& group);

}  // namespace tessera::zero

namespace tessera {
using zero::convert_batch_norms;
using zero::SyncBatchNorm;
}  // namespace tessera
