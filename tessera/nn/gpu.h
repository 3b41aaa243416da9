// Helpers for operations on GPU tensors. Internal.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/core/sequence_part.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {
struct Gemm;
}

namespace tessera::nn::gpu {

// Returns whether Tessera's CUDA kernels support this tensor.
bool takes(const at::Tensor& tensor);

// Current stream of this thread on the tensor's device. A kernel is launched on the current device:
// while this object lives, i.e. until the end of the call that it is an argument of, that is the
// tensor's.
class StreamOf {
 public:
  explicit StreamOf(const at::Tensor& tensor);
  operator kernels::cuda::Stream() const { return stream_; }  // NOLINT: implicit by design

 private:
  c10::DeviceGuard guard_;
  kernels::cuda::Stream stream_;
};
inline StreamOf stream_of(const at::Tensor& tensor) { return StreamOf(tensor); }
// Returns whether work on that stream is being captured into a CUDA graph. False for a tensor on
// the CPU.
bool recording(const at::Tensor& tensor);
DType type_of(const at::Tensor& tensor);
inline void* address(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}
// Copies between tensors of the same sizes on any device. Like Tensor::copy_, but with Tessera's
// own kernel for two different types on one GPU.
void copy(const at::Tensor& to, const at::Tensor& from);
// Returns scratch for two-step sums over rows: kernels/cuda/layers.h.
at::Tensor column_scratch(const at::Tensor& like, std::int64_t rows, std::int64_t cols);

// Gradient of a parameter that a backward is about to compute: in the parameter's place if it has
// one ([Note: gradient places]), otherwise in a new tensor. Empty for a parameter that is undefined
// or needs no gradient.
class ParamGradient {
 public:
  explicit ParamGradient(const at::Tensor& param);
  explicit operator bool() const { return to_.defined(); }
  const at::Tensor& to() const { return to_; }
  bool add() const { return add_; }
  kernels::cuda::Sink sink() const;
  // Returns the gradient for autograd after it has been written.
  at::Tensor result() const;

 private:
  at::Tensor to_;
  bool add_ = false;
  bool in_place_ = false;
};

// [Note: known statistics] The gradient of a bias is the sum of a gradient over its rows, and a
// product in fp8 needs the largest magnitude of its inputs. A kernel that computes a tensor in its
// own pass obtains these too, and stores them here for the linear layer that receives the tensor
// next, on the same thread. They are valid only for this tensor, as long as it is unchanged.
struct Statistics {
  at::Tensor sums;     // over the rows, fp32 [columns]
  at::Tensor largest;  // largest magnitude, fp32 [1]
};
void remember_statistics(const at::Tensor& tensor, const Statistics& statistics);
Statistics known_statistics(const at::Tensor& tensor);  // undefined where not known
// Returns a zero on the tensor's device that a kernel raises to the largest magnitude of its
// result. Undefined if no product is computed in fp8.
at::Tensor new_largest(const at::Tensor& like);

// Products by cuBLASLt, or by ATen for what cuBLASLt does not support and on the CPU. Matrices are
// row-major.

// Runs a product in cuBLASLt on the device of `on`. Returns false if that cannot compute it.
bool run_gemm(kernels::cuda::Gemm& args, const at::Tensor& on);
// Returns x [N, in] · w [out, in]ᵀ + bias [out] + residual [N, out]; the last two may be undefined.
// The result has `sizes`. Selective recomputation keeps it.
at::Tensor product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                   const at::Tensor& residual, at::IntArrayRef sizes);
// Computes the same into `out`, which selective recomputation does not see.
void product_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& bias, const at::Tensor& residual = {});
// Returns dy [N, out] · w, the gradient of x.
at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& w);
// Computes to [out, in] = dyᵀ · x (+ to), if it is needed.
void weight_gradient(const at::Tensor& dy, const at::Tensor& x, const ParamGradient& to);
// Computes to [out] = the sum of `gradient` over its rows (+ to), if it is needed.
void bias_gradient(const at::Tensor& gradient, const ParamGradient& to);
// Computes out [m, n] = op(a) · op(b) (+ out), for any types that cuBLASLt supports.
void multiply_into(const at::Tensor& out, const at::Tensor& a, bool transpose_a,
                   const at::Tensor& b, bool transpose_b, bool add);

// Operations of ops.h for tensors that takes() accepts.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);
at::Tensor norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps);
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& r,
                                           const at::Tensor& w, const at::Tensor& b, double eps);
at::Tensor gelu(const at::Tensor& x, const at::Tensor& b);
at::Tensor swiglu(const at::Tensor& x);
at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates, double gain, const SequencePart& part);
// Rows of the weight of a loss on this rank, if the classes are sharded over ranks.
struct VocabShard {
  std::int64_t first = 0;  // class of the first row
  // Replace a contiguous fp32 tensor by its maximum or its sum over the ranks.
  std::function<void(const at::Tensor&)> max, sum;
};
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t classes,
                                std::optional<VocabShard> shard = std::nullopt);

}  // namespace tessera::nn::gpu
