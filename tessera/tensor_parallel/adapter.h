#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/nn/pass.h"
#include "tessera/nn/unallocated.h"
#include "tessera/tensor_parallel/collectives.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::tensor_parallel {

// Beside a linear of these ranks, [Note: adapters] in core/lora.h.
struct AdapterOptions {
  std::string name = "lora";  // of the module inside the linear
  int part = -1;              // column-parallel: which of LinearOptions::outputs; -1: all
  std::int64_t rank = 0;
  double scale = 1;
};

// The two matrices of an adapter, which the linear around it uses.
class AdapterImpl : public torch::nn::Module, public Sharded {
 public:
  // `scale`: alpha / rank, by which their product counts.
  // `operation` says what its dropout drops: its name in the whole model, "blocks.3.qkv.lora_q".
  AdapterImpl(const Axis& axis, const ParamSpec& a, const ParamSpec& b, double scale,
              const nn::ParamOptions& options, std::string operation);
  std::vector<ParamSpec> specs() const override { return {a_, b_}; }

  at::Tensor A, B;  // NOLINT: as everybody calls them
  const double scale;
  const std::string operation;

 private:
  ParamSpec a_, b_;
};
TORCH_MODULE(Adapter);

// An adapter at work: what it adds to the columns [first, first + b.size(0)) of a product.
struct AdapterUse {
  at::Tensor a, b;
  double scale = 1;
  std::int64_t first = 0;
  // What of x the adapter does not see, x being columns [first_input, …) of rows `inputs` wide.
  nn::Dropout dropout = {};
  std::int64_t first_input = 0, inputs = 0;
};

// x · wᵀ + b plus scale · (x · aᵀ) · bᵀ of each adapter, as one operation. b may be undefined.
// saves: x (shared), w, a, b (shared), and x · aᵀ of all adapters: N · ranks · e. Selective
// recomputation keeps the result. With dropout (x is [B, T, …] then) the same: backward drops again
// what forward dropped.
at::Tensor adapted_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                          const std::vector<AdapterUse>& adapters);

// [Note: adapters of cut linears] Where a linear is cut along its outputs, all ranks have A, and
// each the rows of B that belong to its outputs; along its inputs, each has its columns of A, and
// all have B, whose product is added before the sum over the ranks. So neither sends anything
// forward. What all ranks have gets a part of its gradient on each: these are summed in backward,
// those of one linear in one all-reduce. Nothing of this changes where the sequence is cut. Of the
// open pass they drop what one rank would: all of it, or their columns.
std::vector<AdapterUse> adapters_in_use(const Axis& axis, const std::vector<Adapter>& adapters,
                                        const std::vector<std::int64_t>& first,
                                        const std::string& label);

}  // namespace tessera::tensor_parallel
