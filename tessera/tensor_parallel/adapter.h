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

// Products of the adapters of one linear, without gradients. `matrices` are A and B of each adapter
// in turn; x and y are the input and the output of the linear as rows.
struct AdapterProducts {
  std::vector<AdapterUse> uses;     // without their matrices, which autograd holds
  std::vector<std::int64_t> sizes;  // of the input of the linear, [B, T, in]

  bool empty() const { return uses.empty(); }
  // Adds scale · (x · aᵀ) · bᵀ of each adapter to y. Returns x · aᵀ of all, side by side.
  at::Tensor add_to(const at::Tensor& y, const at::Tensor& x, at::TensorList matrices) const;
  // Given the gradient of y and the result h of add_to(), returns those of the parts of h. Sets
  // those of the B's in `grads`, which is like `matrices`.
  std::vector<at::Tensor> backward(const at::Tensor& dy, const at::Tensor& h,
                                   at::TensorList matrices, std::vector<at::Tensor>& grads) const;
  // Given those, add to the gradient of x, and set those of the A's.
  void add_input_gradient(const at::Tensor& dx, const std::vector<at::Tensor>& dh,
                          at::TensorList matrices) const;
  void weight_gradients(const at::Tensor& x, const std::vector<at::Tensor>& dh,
                        at::TensorList matrices, std::vector<at::Tensor>& grads) const;

 private:
  bool drops() const { return !uses.empty() && uses[0].dropout.rate > 0; }
  // Returns the rows of x, or of its gradient, after the dropout of adapter i.
  at::Tensor seen_by(std::size_t i, const at::Tensor& rows) const;
};
// Returns the products of these adapters, and appends A and B of each to `matrices`.
AdapterProducts products_of(const std::vector<AdapterUse>& adapters,
                            std::vector<at::Tensor>& matrices);

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
