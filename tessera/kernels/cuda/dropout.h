#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/core/dtype.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// Implements [Note: masks] of kernels/dropout.h for a whole matrix: y [rows, cols] = x times 0 or 1
// / (1 - rate). Row r belongs to sample first_sample + r / rows_per_sample and is row first_row + r
// % rows_per_sample of it. Column c is column first_column + c of rows that are `width` wide (0:
// cols). y may be x.
struct Dropout {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0;
  std::size_t rows_per_sample = 1, first_row = 0;
  std::size_t first_column = 0, width = 0;
  std::uint64_t seed = 0, stream = 0, first_sample = 0;  // `stream` is the layer's
  double rate = 0;
};
void dropout(const Dropout& args, const void* x, void* y, Stream stream);

}  // namespace tessera::kernels::cuda
