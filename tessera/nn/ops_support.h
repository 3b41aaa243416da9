// Helpers shared by the operations of ops.h. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/kernels/types.h"
#include "tessera/nn/parallel_for.h"

namespace tessera::nn {

// Returns whether Tessera's CPU kernels support this tensor.
inline bool has_cpu_kernel(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
}

inline kernels::Type type_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? kernels::Type::f32 : kernels::Type::bf16;
}

inline std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }

// Returns [..., cols] as a contiguous [rows, cols].
inline at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.contiguous().view({-1, tensor.size(-1)});
}

// Returns the sizes of x with a different last dim.
inline std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

// Converts an undefined tensor to nullopt, as autograd functions expect.
inline std::optional<at::Tensor> to_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

// Returns the address of row r of a contiguous matrix.
inline const char* row(const at::Tensor& matrix, std::int64_t r) {
  return static_cast<const char*>(matrix.const_data_ptr()) +
         r * matrix.stride(0) * static_cast<std::int64_t>(matrix.element_size());
}
inline char* row_out(const at::Tensor& matrix, std::int64_t r) {
  return static_cast<char*>(matrix.mutable_data_ptr()) +
         r * matrix.stride(0) * static_cast<std::int64_t>(matrix.element_size());
}

// Rows per part whose column sums are computed separately and then added. The number does not
// depend on the number of threads, so neither do the sums.
inline std::int64_t rows_per_part(std::int64_t rows) {
  return std::max<std::int64_t>(64, (rows + 31) / 32);
}

// Calls f(begin, end, part) for the parts of `rows` rows of `cols` columns, in parallel.
template <typename F>
void for_row_parts(std::int64_t rows, std::int64_t cols, F&& f) {
  const std::int64_t size = rows_per_part(rows);
  const std::int64_t parts = (rows + size - 1) / size;
  parallel_for(0, parts, grain_of(size * cols), [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t part = from; part < to; ++part) {
      f(part * size, std::min(rows, (part + 1) * size), part);
    }
  });
}
inline std::int64_t row_parts(std::int64_t rows) {
  const std::int64_t size = rows_per_part(rows);
  return (rows + size - 1) / size;
}

}  // namespace tessera::nn
