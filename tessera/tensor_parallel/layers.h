#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/nn/unallocated.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::tensor_parallel {

class AdapterImpl;
struct AdapterUse;
struct FusedInput;

// Layers of [Note: tensor parallelism]. On one rank each is the ordinary layer. Parameters start as
// zeros, or without memory; initialize() gives every rank its shards of the same numbers.

// Consecutive outputs of a column-parallel linear (queries, keys and values; gate and up) that are
// sharded separately.
struct Outputs {
  std::int64_t length = 0;
  std::int64_t groups = 0;  // groups that are not split, such as heads; 0: every output is a group
  // [Note: shared outputs] There may be fewer groups than ranks (KV heads). Neighboring ranks then
  // hold the same groups, and autograd sums the gradients of their weights over these ranks.
  bool shared = false;
};

// Adapter of a linear, [Note: adapters] in core/lora.h.
struct AdapterOptions {
  std::string name = "lora";  // name of the module inside the linear
  int part = -1;              // column-parallel: index in LinearOptions::outputs; -1: all outputs
  std::int64_t rank = 0;
  double scale = 1;
};

// Options of a linear layer in terms of the whole model; each rank creates its shards.
struct LinearOptions {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
  std::string label = "linear";
  std::vector<Outputs> outputs = {};  // column-parallel only; add up to `out`. Empty: even split
  // Column-parallel only, without `outputs`: the number of ranks need not divide `out`, and the
  // outputs of a rank are rounded up to a multiple of this; those beyond `out` are zeros. 0: it
  // must divide `out`.
  std::int64_t pad_to = 0;
  nn::ParamOptions tensors = {};
  std::vector<AdapterOptions> adapters = {};  // not supported with Axis::overlap
};

// Linear sharded along its outputs: y [..., own outputs] = x · wᵀ + b from copy_to_region(x).
class ColumnParallelLinearImpl : public torch::nn::Module, public Sharded {
 public:
  ColumnParallelLinearImpl(Axis axis, const LinearOptions& options);  // throws UsageError
  // x: the whole sequence on every rank, or this rank's shard if the sequence is sharded.
  at::Tensor forward(const at::Tensor& x);
  at::Tensor forward_gelu(const at::Tensor& x);  // gelu(forward(x)), fused
  // Returns forward() of an input described in fused_linear.h, without the bias unless `add_bias`,
  // and of a norm the sum x + branch too. Implementation detail of models/.
  std::pair<at::Tensor, at::Tensor> forward_fused(FusedInput input, bool add_bias = true);
  std::vector<ParamSpec> specs() const override;

  at::Tensor weight, bias;

 private:
  std::pair<at::Tensor, at::Tensor> parameters_in_use() const;
  std::pair<at::Tensor, at::Tensor> multiply(FusedInput input, const at::Tensor& w,
                                             const at::Tensor& b) const;
  std::vector<AdapterUse> adapters() const;

  Axis axis_;
  std::string label_;
  ParamSpec weight_spec_, bias_spec_;
  bool shared_ = false;
  std::vector<std::shared_ptr<AdapterImpl>> adapters_;
  std::vector<std::int64_t> adapted_from_;  // first local output of each adapter
};
TORCH_MODULE(ColumnParallelLinear);

// Linear sharded along its inputs: y [..., out] = x · wᵀ + b from this rank's inputs x [..., own
// inputs], through reduce_from_region.
class RowParallelLinearImpl : public torch::nn::Module, public Sharded {
 public:
  RowParallelLinearImpl(Axis axis, const LinearOptions& options);  // throws UsageError
  // x: the result of a column-parallel linear of the same axis.
  at::Tensor forward(const at::Tensor& x);
  // Returns forward() of an input described in fused_linear.h, plus the residual if it is defined.
  // Implementation detail of models/.
  at::Tensor forward_fused(FusedInput input, const at::Tensor& residual = {});
  std::vector<ParamSpec> specs() const override;

  at::Tensor weight, bias;

 private:
  Axis axis_;
  std::string label_;
  ParamSpec weight_spec_, bias_spec_;
  std::vector<std::shared_ptr<AdapterImpl>> adapters_;
};
TORCH_MODULE(RowParallelLinear);

// Options of an embedding table in terms of the whole model.
struct EmbeddingOptions {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::string label = "embedding";
  std::int64_t pad_to = 1;  // rows of a rank are rounded up to a multiple: [Note: padding]
  nn::ParamOptions tensors = {};
};

// Embedding table sharded by rows. Every rank has the same number of consecutive rows; the last
// ones may be padding.
class VocabParallelEmbeddingImpl : public torch::nn::Module, public Sharded {
 public:
  VocabParallelEmbeddingImpl(Axis axis, const EmbeddingOptions& options);  // throws UsageError
  // Maps int64 ids [B, T] to [B, T, width] (or this rank's shard of the sequence), and adds `added`
  // [T, width] (positions) if defined.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& added = {});
  std::vector<ParamSpec> specs() const override;

  at::Tensor weight;

 private:
  Axis axis_;
  std::string label_;
  ParamSpec spec_;
};
TORCH_MODULE(VocabParallelEmbedding);

// Dropout of a layer on a mesh.
struct DropoutOptions {
  // In [0, 1). Without a value it is ParallelOptions::dropout.
  std::optional<double> rate = std::nullopt;
  std::string label = "dropout";  // must differ between layers: it chooses the random numbers
  // Set it for tensors whose columns the ranks share, such as the output of a ColumnParallelLinear.
  bool sharded = false;
};

// Dropout whose masks do not depend on the mesh: [Note: dropout] in nn/pass.h. All tensor-parallel
// ranks drop the same elements, and recomputation drops those of the first run. Takes [samples, …]
// of any number of dims, fp32 or bf16 (on a GPU fp16 too); with sequence parallelism the shard
// [B, T / ranks, C] of this rank. Works in ParallelModel::step(), start_step() and run(); elsewhere
// it throws UsageError in training. In evaluation it returns its argument.
class MeshDropoutImpl : public torch::nn::Module {
 public:
  MeshDropoutImpl(Axis axis, DropoutOptions options);  // throws UsageError
  // Multiplies each value of x by 0 or 1 / (1 - rate).
  at::Tensor forward(const at::Tensor& x);
  // Returns the options given to the constructor.
  const DropoutOptions& options() const { return options_; }

 private:
  Axis axis_;
  DropoutOptions options_;
};
TORCH_MODULE(MeshDropout);

// Returns x · wᵀ + b with this rank's rows of w and b, from copy_to_region(x). b may be undefined.
at::Tensor column_parallel_linear(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                                  const at::Tensor& b, const std::string& label);

// Returns x · wᵀ + b with this rank's columns of x and w, summed over the ranks. It is one
// operation, so that the bias needs no separate pass, a sequence-parallel backward gathers once for
// all gradients, and a selective segment keeps only the sum. b may be undefined.
at::Tensor row_parallel_linear(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                               const at::Tensor& b, const std::string& label);

// Forward: returns the parameters. Backward: sums the gradients of segments that several ranks
// hold, as described by the specs; see [Note: shared outputs]. Takes one all-reduce of the shared
// segments of the whole parameters.
std::vector<at::Tensor> sum_shared(const comm::Group& group, const std::vector<at::Tensor>& params,
                                   const std::vector<ParamSpec>& specs, const std::string& label);

// nn::linear_cross_entropy of copy_to_region(hidden), with the rows of the weight [V, C] sharded
// over the ranks. The logits [N, V / ranks] are not sent: two all-reduces, of N fp32 numbers (the
// maximum) and of 2·N (the sum of exponentials, the target's logit), and B·T·C of the gradient in
// backward. saves: as nn::linear_cross_entropy, N·V/ranks·e. `vocab` is V if the ranks have more
// rows in total: rows beyond it are padding, not classes, and get no gradient. -1: all rows are
// classes.
// With `cap` c the logits become c · tanh(logit / c) first. 0 disables it.
at::Tensor vocab_parallel_cross_entropy(const Axis& axis, const at::Tensor& hidden,
                                        const at::Tensor& weight, const at::Tensor& targets,
                                        const std::string& label, std::int64_t vocab = -1,
                                        double cap = 0);

}  // namespace tessera::tensor_parallel
