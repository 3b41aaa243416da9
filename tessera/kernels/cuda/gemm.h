#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// [Note: cuBLASLt] Matrix products run in cuBLASLt, whose epilogues can add a bias, apply GELU or
// sum a bias gradient. The library is found at run time (LibTorch ships it); Tessera declares the
// part of its C interface that it uses and links nothing. When a product of a new shape and kind is
// first requested (never during graph capture), the best few algorithms that cuBLASLt proposes are
// measured on that product, and the fastest is remembered.
enum class Epilogue : std::uint8_t {
  none,
  bias,           // + bias [n]
  gelu_bias,      // aux = product + bias, d = gelu(aux)
  bias_gradient,  // weight gradients, d = aᵀ · b: bias_gradient [m] = the sum of the rows of a
  // The last two require out_type = type, and GELU requires n to be a multiple of 8.
};

// d [m, n] = op(a) · op(b) + c, all row-major and contiguous. a is [m, k], or [k, m] if transposed;
// b is [k, n], or [n, k] if transposed. c may be null, or d itself (accumulate).
struct Gemm {
  DType type = DType::bf16;      // type of a, and of b if b_type is not set
  DType out_type = DType::bf16;  // type of c and d
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool tf32 = false;  // if a and b are f32: may round them to TF32, which has a mantissa of 10 bits
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  Epilogue epilogue = Epilogue::none;
  const void* bias = nullptr;     // [n], of out_type
  void* aux = nullptr;            // [m, n], of type; gelu_bias
  void* bias_gradient = nullptr;  // [m], of type; bias_gradient

  // Products in fp8 (not of two f8_e5m2) need the factors of a and b, on the device and 16-byte
  // aligned: [Note: fp8]. Only b may be transposed, and must be; k and n are multiples of 16.
  const float* a_factor = nullptr;
  const float* b_factor = nullptr;
  std::optional<DType> b_type = std::nullopt;  // f8_e4m3 or f8_e5m2
  // fp8: sums may be kept in fewer bits (about 14 of the mantissa), which is faster.
  bool fast_sums = false;
};

// Returns null if cuBLASLt can be used on this device, otherwise the reason it cannot.
const char* gemm_problem();
// Returns null if products in fp8 can be used on this device, otherwise the reason they cannot.
const char* fp8_problem();

// Runs a product. `workspace` is device memory that is not in use on other streams at the same
// time. Returns false, without doing anything, if cuBLASLt has no algorithm for it (the caller then
// uses ATen). `tune`: measure a new kind of product; otherwise use cuBLASLt's first proposal.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};
constexpr std::size_t kGemmWorkspace = 32u << 20;
bool gemm(const Gemm& args, Workspace workspace, bool tune, Stream stream);

}  // namespace tessera::kernels::cuda
