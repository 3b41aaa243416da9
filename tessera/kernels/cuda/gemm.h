#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// [Note: cuBLASLt] Matrix products go to cuBLASLt, which can add a bias, take GELU or sum up a bias
// gradient on the way. The library is found at run time (LibTorch brings it along); we declare what
// we use of its C interface and link nothing. The first time a product of some shape and kind is
// asked for (never while a graph is captured), the best few algorithms that cuBLASLt proposes are
// measured on that very product, in memory of their own, and the fastest is remembered.
enum class Epilogue : std::uint8_t {
  none,
  bias,           // + bias [n]
  gelu_bias,      // aux = product + bias, d = gelu(aux)
  bias_gradient,  // for d = aᵀ · b: bias_gradient [m] = the sum of the rows of a  (weight
                  // gradients)
  // The last two want out_type = type, and GELU wants n to be a multiple of 8.
};

// d [m, n] = op(a) · op(b) + c, all by rows without gaps. a is [m, k], or [k, m] if transposed; b
// is [k, n], or [n, k] if transposed. c may be null, or d itself (accumulate).
struct Gemm {
  DType type = DType::bf16;      // of a, b
  DType out_type = DType::bf16;  // of c and d
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  Epilogue epilogue = Epilogue::none;
  const void* bias = nullptr;     // [n], of out_type
  void* aux = nullptr;            // [m, n], of type; gelu_bias
  void* bias_gradient = nullptr;  // [m], of type; bias_gradient
};

// Null if cuBLASLt can be used on this device; otherwise why not.
const char* gemm_problem();

// Runs it. `workspace`: device memory that nobody else uses on other streams at the same time.
// Returns false, having done nothing, if cuBLASLt has no algorithm for it (the caller then takes
// ATen's). `tune`: measure where this kind of product is new; otherwise cuBLASLt's first proposal.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};
constexpr std::size_t kGemmWorkspace = 32u << 20;
bool gemm(const Gemm& how, Workspace workspace, bool tune, Stream stream);

}  // namespace tessera::kernels::cuda
