#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Does ATen multiply bf16 matrices on this processor at a useful speed? It has fast kernels with
// AVX-512 (oneDNN, and AMX where there is), and with Arm's bf16 instructions; elsewhere a bf16
// product runs at a hundredth of the fp32 rate.
bool cpu_multiplies_bf16();

// Must a product of such matrices be computed in fp32 and rounded after?
bool multiplies_in_fp32(const at::Tensor& tensor);

// a · b for matrices of the same type, with any strides. Computed as one ATen matrix product, in
// fp32 where bf16 would crawl.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
// a · b + bias (may be undefined) of bf16, in fp32 and then rounded.
at::Tensor addmm_in_fp32(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);

// fp32 copies of bf16 tensors and back, with the strides kept where the tensor is dense.
at::Tensor widened(const at::Tensor& tensor);   // fp32 stays as it is
at::Tensor narrowed(const at::Tensor& tensor);  // to bf16

}  // namespace tessera::nn
