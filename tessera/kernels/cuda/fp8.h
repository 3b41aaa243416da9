#pragma once

#include <cstddef>

#include "tessera/kernels/cuda/cuda.h"

// Conversion of matrices to 8-bit floating point, for products on tensor cores.
namespace tessera::kernels::cuda {

// [Note: fp8] A matrix is stored as 8-bit numbers and one fp32 factor for all of them. The factor
// makes the largest magnitude of the matrix the largest number of the type: 448 for f8_e4m3 (3 bits
// of mantissa), 57344 for f8_e5m2 (2 bits, for gradients, whose range is wider). It depends only on
// the values being converted, so nothing has to be saved between steps. A matrix with an infinity
// or NaN becomes NaN, and so does the product, which skips the step as in other types.

// Replaces *largest by the largest magnitude of `count` elements, ignoring NaN. Other kernels
// compute it in their own pass: their `largest`.
struct Magnitudes {
  DType type = DType::bf16;
  std::size_t count = 0;
  const void* x = nullptr;
};
void largest_magnitude(const Magnitudes& in, float* largest, Stream stream);

// Conversion of x [rows, cols], of which `largest` is the largest magnitude. cols must be a
// multiple of 16 and pointers 16-byte aligned.
struct ToFp8 {
  DType type = DType::bf16;   // of x
  DType to = DType::f8_e4m3;  // or f8_e5m2
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const float* largest = nullptr;
};
// Returns the number of columns of the transposed matrix: rows rounded up to a multiple of 16.
constexpr std::size_t fp8_rows(std::size_t rows) { return (rows + 15) / 16 * 16; }
// Writes the 8-bit numbers to `out` [rows, cols] and to `transposed` [cols, fp8_rows(rows)], filled
// with zeros; either may be null. x is about these numbers times *factor.
void to_fp8(const ToFp8& in, void* out, void* transposed, float* factor, Stream stream);

}  // namespace tessera::kernels::cuda
