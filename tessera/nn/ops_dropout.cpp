#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

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
  std::int64_t first_row = 0, first_column = 0;
  std::int64_t width = 0;  // columns of a whole row
};

void drop_rows(const at::Tensor& x, const KeptDropout& kept) {
  const Dropout& options = kept.options;
  const std::int64_t rows = x.size(1), cols = x.size(2);
  if (gpu::takes(x)) {
    const kernels::cuda::Dropout there = {.type = gpu::type_of(x),
                                          .rows = count(x.size(0) * rows),
                                          .cols = count(cols),
                                          .rows_per_sample = count(rows),
                                          .first_row = count(kept.first_row),
                                          .first_column = count(kept.first_column),
                                          .width = count(kept.width),
                                          .seed = options.seed,
                                          .stream = options.stream,
                                          .first_sample = options.first_sample,
                                          .rate = options.rate};
    kernels::cuda::dropout(there, gpu::address(x), gpu::address(x), gpu::stream_of(x));
    return;
  }
  const at::Tensor matrix = x.view({-1, cols});
  parallel_for(0, matrix.size(0), grain_of(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::uint64_t sample = options.first_sample + static_cast<std::uint64_t>(r / rows);
      const kernels::Dropout mask = {.seed = options.seed,
                                     .stream = kernels::stream_of_sample(options.stream, sample),
                                     .rate = options.rate,
                                     .width = count(kept.width)};
      kernels::drop(mask, type_of(matrix), static_cast<std::uint64_t>(kept.first_row + r % rows),
                    count(kept.first_column), row_out(matrix, r), count(cols));
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

}  // namespace

at::Tensor dropout(const at::Tensor& x, const Dropout& options, std::int64_t first_row,
                   std::int64_t first_column, std::int64_t width) {
  if (options.rate == 0) return x;
  check_droppable(x, options);
  auto kept = c10::make_intrusive<KeptDropout>();
  kept->options = options;
  kept->first_row = first_row;
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
  part.first_column = first;
  part.width = width;
  at::Tensor out = x.clone(at::MemoryFormat::Contiguous);
  drop_rows(out, part);
  return out;
}

}  // namespace tessera::nn
