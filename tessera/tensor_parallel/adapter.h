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

// The two matrices of an adapter, used by the linear that contains it.
class AdapterImpl : public torch::nn::Module, public Sharded {
 public:
  // `scale`: factor of their product, alpha / rank. `operation` determines the dropout masks: the
  // name in the whole model, such as "blocks.3.qkv.lora_q".
  AdapterImpl(const Axis& axis, const ParamSpec& a, const ParamSpec& b, double scale,
              const nn::ParamOptions& options, std::string operation);
  std::vector<ParamSpec> specs() const override { return {a_, b_}; }

  at::Tensor A, B;  // NOLINT: the usual names
  const double scale;
  const std::string operation;

 private:
  ParamSpec a_, b_;
};
TORCH_MODULE(Adapter);

// Adapter as used in one forward: it adds to columns [first, first + b.size(0)) of a product.
struct AdapterUse {
  at::Tensor a, b;
  double scale = 1;
  std::int64_t first = 0;
  // Dropout of the adapter's input x, which is columns [first_input, …) of rows that are `inputs`
  // wide.
  nn::Dropout dropout = {};
  std::int64_t first_input = 0, inputs = 0;
};

// Returns x · wᵀ + b plus scale · (x · aᵀ) · bᵀ of each adapter, as one operation. b may be
// undefined. saves: x (shared), w, a, b (shared), and x · aᵀ of all adapters: N · ranks · e.
// Selective recomputation keeps the result. Dropout (which requires x [B, T, …]) saves nothing
// more: backward recomputes the masks.
at::Tensor adapted_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                          const std::vector<AdapterUse>& adapters);

// [Note: adapters of cut linears] If a linear is sharded along its outputs, all ranks hold A, and
// each holds the rows of B for its outputs. If it is sharded along its inputs, each holds its
// columns of A, and all hold B, whose product is added before the sum over the ranks. So forward
// sends nothing in either case. A matrix that all ranks hold gets a partial gradient on each rank:
// these are summed in backward, with one all-reduce per linear. Sequence parallelism changes
// nothing of this. Dropout matches that of one rank: each rank applies the mask of its columns.
std::vector<AdapterUse> adapters_in_use(const Axis& axis,
                                        const std::vector<std::shared_ptr<AdapterImpl>>& adapters,
                                        const std::vector<std::int64_t>& first,
                                        const std::string& label);

}  // namespace tessera::tensor_parallel
