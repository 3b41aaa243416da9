// What our operations need of tensors on a GPU. Internal.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/kernels/cuda/cuda.h"

namespace tessera::nn::gpu {

// Can our kernels work on it?
bool takes(const at::Tensor& tensor);

// The stream that this thread puts work on. A kernel is launched on the device that is current:
// while this lives, which is to the end of the call that it is an argument of, that is the
// tensor's.
class StreamOf {
 public:
  explicit StreamOf(const at::Tensor& tensor);
  operator kernels::cuda::Stream() const { return stream_; }  // NOLINT: that is what it is for

 private:
  c10::DeviceGuard guard_;
  kernels::cuda::Stream stream_;
};
inline StreamOf stream_of(const at::Tensor& tensor) { return StreamOf(tensor); }
// Does that go into a CUDA graph instead of being run?
bool recording(const at::Tensor& tensor);
DType type_of(const at::Tensor& tensor);
inline void* address(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}
// to = from, of the same sizes: Tensor::copy_, but in a kernel of our own between two types on one
// GPU. On any device.
void copy(const at::Tensor& to, const at::Tensor& from);
// What two-step sums over rows need: kernels/cuda/layers.h.
at::Tensor column_scratch(const at::Tensor& like, std::int64_t rows, std::int64_t cols);

// The gradient of a parameter that a backward is about to compute: in its place where it has one
// ([Note: gradient places]), else in a tensor of its own. Of an undefined parameter, or one that
// wants none: nothing.
class ParamGradient {
 public:
  explicit ParamGradient(const at::Tensor& param);
  explicit operator bool() const { return to_.defined(); }
  const at::Tensor& to() const { return to_; }
  bool add() const { return add_; }
  kernels::cuda::Sink sink() const;
  // For autograd, once it has been written.
  at::Tensor result() const;

 private:
  at::Tensor to_;
  bool add_ = false;
  bool in_place_ = false;
};

// [Note: known sums] The gradient of a bias is the sum of a gradient over its rows. Whoever makes
// that gradient in a pass of its own gets the sums with it, and leaves them here for the linear
// layer to which autograd hands it next, on the same thread. They count for this very tensor,
// unchanged.
void remember_sums(const at::Tensor& gradient, const at::Tensor& sums);  // fp32, [columns]
at::Tensor known_sums(const at::Tensor& gradient);                       // undefined: not known

// Products with cuBLASLt, or with ATen where that has nothing. Matrices by rows.
// x [N, in] · w [out, in]ᵀ + bias [out] + residual [N, out]; the last two may be undefined. The
// result has `sizes`. Selective recomputation keeps it.
at::Tensor product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                   const at::Tensor& residual, at::IntArrayRef sizes);
// dy [N, out] · w: the gradient of x.
at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& w);
// to [out, in] = dyᵀ · x (+ to), if it is wanted.
void weight_gradient(const at::Tensor& dy, const at::Tensor& x, const ParamGradient& to);
// to [out] = the sum of `gradient` over its rows (+ to), if it is wanted.
void bias_gradient(const at::Tensor& gradient, const ParamGradient& to);
// out [m, n] = op(a) · op(b) (+ out), of any types that cuBLASLt takes.
void multiply_into(const at::Tensor& out, const at::Tensor& a, bool transpose_a,
                   const at::Tensor& b, bool transpose_b, bool add);

// The operations of ops.h on what takes() says.
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                  const at::Tensor& residual);
at::Tensor norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps);
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& r,
                                           const at::Tensor& w, const at::Tensor& b, double eps);
std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, const at::Tensor& norm_w,
                                              const at::Tensor& norm_b, double eps,
                                              const at::Tensor& w, const at::Tensor& b);
at::Tensor gelu(const at::Tensor& x, const at::Tensor& b);
at::Tensor swiglu(const at::Tensor& x);
at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& before, const at::Tensor& w,
                       const at::Tensor& b, const at::Tensor& residual);
at::Tensor swiglu_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                         const at::Tensor& residual);
at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates, double gain);
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t classes);

}  // namespace tessera::nn::gpu
