#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Does ATen multiply bf16 matrices on this processor at a useful speed? It has fast kernels with
// AVX-512 (oneDNN, and AMX where there is), and with Arm's bf16 instructions; elsewhere a bf16
// product runs at a hundredth of the fp32 rate.
bool cpu_multiplies_bf16();

// Must a product of such matrices be computed in fp32 and rounded after?
bool multiplies_in_fp32(const at::Tensor& tensor);

// a · wᵀ + bias for matrices [N, in] and [out, in] of the same type; bias [out] may be undefined.
// Computed in fp32 where bf16 would crawl. Selective recomputation keeps the result.
at::Tensor gemm_nt(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias = {});
// Does gemm_nt do better than at::linear? See [Note: written transposed].
bool beats_aten(const at::Tensor& tensor);

// The same by rows, as they arrive: multiply() any rows of `a` into their place, then result().
// Between the two nothing is known to selective recomputation; see keep_in_selective.
class GemmByRows {
 public:
  GemmByRows(std::int64_t rows, const at::Tensor& w, const at::Tensor& bias = {});
  void multiply(std::int64_t begin, const at::Tensor& a);
  at::Tensor rows(std::int64_t begin, std::int64_t count) const;  // of the type of w
  at::Tensor result() const;                                      // all of them
  const at::Tensor& unrounded() const { return out_; }  // as computed, which may be in fp32

 private:
  at::ScalarType type_;
  at::Tensor weight_, bias_, out_;
  bool swap_ = false;
};

// The gradients of x · wᵀ, from that of the result [N, out]. Undefined where not wanted.
struct ProductGradients {
  at::Tensor dx, dw;
};
ProductGradients product_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                   bool want_x, bool want_w);

// out = a · bᵀ for each of a batch of matrices, [G, n, k] and [G, m, k].
void bmm_nt_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// fp32 copies of bf16 tensors and back, with the strides kept where the tensor is dense.
at::Tensor to_fp32(const at::Tensor& tensor);  // fp32 stays as it is
at::Tensor to_bf16(const at::Tensor& tensor);

}  // namespace tessera::nn
