#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Returns whether ATen multiplies bf16 matrices on this processor at a useful speed. It has fast
// kernels for AVX-512 (oneDNN, with AMX if available) and for Arm's bf16 instructions; elsewhere a
// bf16 product runs at a hundredth of the fp32 rate.
bool cpu_multiplies_bf16();

// Returns whether a product of such matrices must be computed in fp32 and then rounded.
bool multiplies_in_fp32(const at::Tensor& tensor);

// Returns a · wᵀ + bias for matrices [N, in] and [out, in] of the same type; bias [out] may be
// undefined. Computed in fp32 where bf16 would be very slow. Selective recomputation keeps the
// result.
at::Tensor gemm_nt(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias = {});
// Returns whether gemm_nt is faster than at::linear. See [Note: written transposed].
bool beats_aten(const at::Tensor& tensor);

// gemm_nt for rows that arrive one group after another: call multiply() for any rows of `a`, then
// result(). Selective recomputation does not see these products; see keep_in_selective.
class GemmByRows {
 public:
  GemmByRows(std::int64_t rows, const at::Tensor& w, const at::Tensor& bias = {});
  void multiply(std::int64_t begin, const at::Tensor& a);
  at::Tensor rows(std::int64_t begin, std::int64_t count) const;  // in the type of w
  at::Tensor result() const;                                      // all rows
  const at::Tensor& unrounded() const { return out_; }            // as computed, possibly in fp32

 private:
  at::ScalarType type_;
  at::Tensor weight_, bias_, out_;
  bool swap_ = false;
};

// Gradients of x · wᵀ, given that of the result [N, out]. Undefined if not requested.
struct ProductGradients {
  at::Tensor dx, dw;
};
ProductGradients product_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                   bool want_x, bool want_w);

// Computes out = a · bᵀ for each matrix of a batch, [G, n, k] and [G, m, k].
void bmm_nt_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// Convert bf16 tensors to fp32 and back. Dense tensors keep their strides.
at::Tensor to_fp32(const at::Tensor& tensor);  // returns fp32 tensors unchanged
at::Tensor to_bf16(const at::Tensor& tensor);

}  // namespace tessera::nn
