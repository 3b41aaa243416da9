#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/nn/unallocated.h"
#include "tessera/tensor_parallel/adapter.h"
#include "tessera/tensor_parallel/collectives.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::tensor_parallel {

// The layers of [Note: tensor parallelism]. On one rank each is the ordinary layer. Parameters
// start as zeros, or without memory; initialise() gives all ranks their parts of the same numbers.

// Outputs that stand side by side in a column-parallel linear (queries, keys and values; gate and
// up), each cut by itself.
struct Outputs {
  std::int64_t length = 0;
  std::int64_t groups = 0;  // that stay whole, such as heads; 0: every output by itself
  // [Note: shared outputs] There may be fewer groups than ranks (kv heads): then neighbours have
  // the same ones, and the gradients of their weights are summed over them, inside autograd.
  bool shared = false;
};

// A linear as one process would have it; the ranks' parts follow.
struct LinearOptions {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
  std::string label = "linear";
  std::vector<Outputs> outputs = {};  // column-parallel only: they make `out`. Empty: all alike
  // Column-parallel only, without `outputs`: the ranks need not divide `out`, and a rank's outputs
  // are rounded up to a multiple of this; those beyond `out` are zeros. 0: they must divide it.
  std::int64_t pad_to = 0;
  nn::ParamOptions tensors = {};
  std::vector<AdapterOptions> adapters = {};  // beside it; not with Axis::overlap
};

// y [..., own outputs] = x · wᵀ + b for the outputs of this rank, from copy_to_region(x).
class ColumnParallelLinearImpl : public torch::nn::Module, public Sharded {
 public:
  ColumnParallelLinearImpl(Axis axis, const LinearOptions& options);  // throws UsageError
  // x: whole on every rank, or this rank's part of the sequence where that is cut.
  at::Tensor forward(const at::Tensor& x);
  at::Tensor forward_gelu(const at::Tensor& x);  // gelu(forward(x)), fused
  std::vector<ParamSpec> specs() const override;

  at::Tensor weight, bias;

 private:
  std::pair<at::Tensor, at::Tensor> parameters_in_use() const;
  at::Tensor product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) const;

  Axis axis_;
  std::string label_;
  ParamSpec weight_spec_, bias_spec_;
  bool shared_ = false;
  std::vector<Adapter> adapters_;
  std::vector<std::int64_t> adapted_from_;  // the first output of each
};
TORCH_MODULE(ColumnParallelLinear);

// y [..., out] = x · wᵀ + b from the inputs x [..., own inputs] of this rank, through
// reduce_from_region.
class RowParallelLinearImpl : public torch::nn::Module, public Sharded {
 public:
  RowParallelLinearImpl(Axis axis, const LinearOptions& options);  // throws UsageError
  // x: what a column-parallel linear of the same axis gave.
  at::Tensor forward(const at::Tensor& x);
  std::vector<ParamSpec> specs() const override;

  at::Tensor weight, bias;

 private:
  Axis axis_;
  std::string label_;
  ParamSpec weight_spec_, bias_spec_;
  std::vector<Adapter> adapters_;
};
TORCH_MODULE(RowParallelLinear);

// A table as one process would have it.
struct EmbeddingOptions {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::string label = "embedding";
  std::int64_t pad_to = 1;  // a rank's rows are rounded up to a multiple: [Note: padding]
  nn::ParamOptions tensors = {};
};

// Rows of a table, of which each rank has as many in a row, the last ones maybe fewer: padding.
class VocabParallelEmbeddingImpl : public torch::nn::Module, public Sharded {
 public:
  VocabParallelEmbeddingImpl(Axis axis, const EmbeddingOptions& options);  // throws UsageError
  // int64 ids [B, T] to [B, T, width] (or this rank's part of the sequence), plus `added` [T,
  // width] (positions) if defined.
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
  // x with each value times 0 or 1 / (1 - rate).
  at::Tensor forward(const at::Tensor& x);
  // As given to the constructor.
  const DropoutOptions& options() const { return options_; }

 private:
  Axis axis_;
  DropoutOptions options_;
};
TORCH_MODULE(MeshDropout);

// x · wᵀ + b with this rank's rows of w and b, from copy_to_region(x). b may be undefined.
at::Tensor column_parallel_linear(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                                  const at::Tensor& b, const std::string& label);

// x · wᵀ + b with this rank's columns of x and w, summed over the ranks. One operation, so that the
// bias costs no pass of its own, a sequence-parallel backward gathers once for all gradients, and a
// selective segment keeps the sum only. b may be undefined.
at::Tensor row_parallel_linear(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                               const at::Tensor& b, const std::string& label);

// Forward: the parameters. Backward: gradients of what several ranks have are summed over them.
// The specs say what that is; see [Note: shared outputs]. One all-reduce of the shared segments of
// the whole parameters.
std::vector<at::Tensor> sum_shared(const comm::Group& group, const std::vector<at::Tensor>& params,
                                   const std::vector<ParamSpec>& specs, const std::string& label);

// nn::linear_cross_entropy of copy_to_region(hidden) with the rows of the weight [V, C] shared
// among the ranks. The logits [N, V / ranks] stay where they are: two all-reduces, of N fp32
// numbers (the maximum) and of 2·N (the sum of exponentials, the target's logit), and B·T·C of the
// gradient in backward. saves: as nn::linear_cross_entropy, N·V/ranks·e.
// `vocab` is V where the ranks have more rows than that in all: what is beyond is no class, and
// gets no gradient. -1: all rows are classes.
// With `cap` c the logits become c · tanh(logit / c) first; 0: they stay.
at::Tensor vocab_parallel_cross_entropy(const Axis& axis, const at::Tensor& hidden,
                                        const at::Tensor& weight, const at::Tensor& targets,
                                        const std::string& label, std::int64_t vocab = -1,
                                        double cap = 0);

}  // namespace tessera::tensor_parallel
