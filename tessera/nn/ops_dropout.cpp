#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/dropout.h"
#include "tessera/kernels/dropout.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct KeptDropout : torch::CustomClassHolder {
  Dropout options;
  std::vector<TokenRange> rows;  // of each sample
  std::int64_t first_column = 0;
  std::int64_t width = 0;  // columns of a whole row
};

// Masks rows [range.local, range.local + range.count) of sample b on a GPU; of all samples if the
// range has all rows.
void drop_on_gpu(const at::Tensor& x, const KeptDropout& kept, const TokenRange& range,
                 std::int64_t b) {
  const bool all = range.count == x.size(1);
  if (all && b > 0) return;
  const at::Tensor rows = all ? x : x.select(0, b).narrow(0, range.local, range.count);
  const kernels::cuda::Dropout there = {
      .type = gpu::type_of(rows),
      .rows = count(rows.numel() / x.size(2)),
      .cols = count(x.size(2)),
      .rows_per_sample = count(range.count),
      .first_row = count(range.position),
      .first_column = count(kept.first_column),
      .width = count(kept.width),
      .seed = kept.options.seed,
      .stream = kept.options.stream,
      .first_sample = kept.options.first_sample + static_cast<std::uint64_t>(b),
      .rate = kept.options.rate};
  kernels::cuda::dropout(there, gpu::address(rows), gpu::address(rows), gpu::stream_of(rows));
}

void drop_rows(const at::Tensor& x, const KeptDropout& kept) {
  const Dropout& options = kept.options;
  const std::int64_t rows = x.size(1), cols = x.size(2);
  if (gpu::takes(x)) {
    for (std::int64_t b = 0; b < x.size(0); ++b) {
      for (const TokenRange& range : kept.rows) drop_on_gpu(x, kept, range, b);
    }
    return;
  }
  const auto position = [&](std::int64_t row) {
    const auto range = std::find_if(kept.rows.begin(), kept.rows.end(),
                                    [&](const TokenRange& r) { return row < r.local + r.count; });
    return static_cast<std::uint64_t>(range->position + row - range->local);
  };
  const at::Tensor matrix = x.view({-1, cols});
  parallel_for(0, matrix.size(0), grain_of(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::uint64_t sample = options.first_sample + static_cast<std::uint64_t>(r / rows);
      const kernels::Dropout mask = {.seed = options.seed,
                                     .stream = kernels::stream_of_sample(options.stream, sample),
                                     .rate = options.rate,
                                     .width = count(kept.width)};
      kernels::drop(mask, type_of(matrix), position(r % rows), count(kept.first_column),
                    row_out(matrix, r), count(cols));
    }
  });
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const c10::intrusive_ptr<KeptDropout>& kept) {
    ctx->saved_data["dropout"] = c10::IValue::make_capsule(kept);
    at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
    drop_rows(out, *kept);
    return out;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("dropout");
    const auto kept =
        c10::static_intrusive_pointer_cast<KeptDropout>(ctx->saved_data["dropout"].toCapsule());
    at::Tensor dx = grads[0].clone(at::MemoryFormat::Contiguous);
    drop_rows(dx, *kept);
    return {dx, at::Tensor()};
  }
};

void check_droppable(const at::Tensor& x, const Dropout& options) {
  if (!(options.rate > 0) || options.rate >= 1 || x.dim() != 3) {
    throw UsageError(str("dropout: rate ", options.rate, " and a tensor with ", x.dim(),
                         " dims. The rate must be in [0, 1), and the tensor [batch, rows, "
                         "columns]."));
  }
  if (!gpu::takes(x) && !has_cpu_kernel(x)) {
    throw UsageError(str("dropout: type ", c10::toString(x.scalar_type()), " on ", x.device().str(),
                         " is not supported. Use fp32 or bf16, or fp16 on a GPU."));
  }
}

// Returns the positions of the rows of each sample of x.
std::vector<TokenRange> rows_for(const at::Tensor& x, const Dropout& options,
                                 const std::vector<TokenRange>& given) {
  std::vector<TokenRange> rows = given.empty() ? options.rows(0, x.size(1), x.size(1)) : given;
  std::int64_t known = 0;
  for (const TokenRange& range : rows) known += range.count;
  if (known == x.size(1)) return rows;
  throw UsageError(str("dropout: positions are known for ", known, " of ", x.size(1), " rows. ",
                       "With context parallelism the tensor must be [batch, tokens, …], with this "
                       "rank's tokens."));
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const Dropout& options, const std::vector<TokenRange>& rows,
                   std::int64_t first_column, std::int64_t width) {
  if (options.rate == 0) return x;
  check_droppable(x, options);
  auto kept = c10::make_intrusive<KeptDropout>();
  kept->options = options;
  kept->rows = rows_for(x, options, rows);
  kept->first_column = first_column;
  kept->width = width == 0 ? x.size(2) : width;
  return DropoutFunction::apply(x, kept);
}

at::Tensor dropped_columns(const at::Tensor& x, const Dropout& options, std::int64_t first,
                           std::int64_t width) {
  if (options.rate == 0) return x;
  check_droppable(x, options);
  if (first < 0 || first + x.size(2) > width) {
    throw UsageError(str("dropout: columns ", first, " to ", first + x.size(2),
                         " are not within a row of ", width, " columns."));
  }
  const at::NoGradGuard no_grad;
  KeptDropout part;
  part.options = options;
  part.rows = rows_for(x, options, {});
  part.first_column = first;
  part.width = width;
  at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
  drop_rows(out, part);
  return out;
}

}  // namespace tessera::nn
