// Head and loss on a GPU, one block of rows at a time.

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/core/text.h"
#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn::gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// [Note: loss by rows] The logits of all rows would be the largest tensor of a step. So rows are
// processed one block at a time: their logits are replaced by their gradient, which is immediately
// multiplied by the weight (the gradient of the rows) and by the rows (their contribution to the
// weight's gradient, accumulated in fp32). No product is computed twice. Backward multiplies by the
// incoming factor at the end.
constexpr std::int64_t kLogitsBytes = 256 << 20;

std::int64_t rows_at_a_time(const at::Tensor& h, const at::Tensor& w) {
  const std::int64_t fit = kLogitsBytes / (w.size(0) * static_cast<std::int64_t>(h.element_size()));
  return std::clamp<std::int64_t>(fit / 128 * 128, 128, std::max<std::int64_t>(128, h.size(0)));
}

// Replaces logits [n, columns] by their gradient. Returns the losses of the rows, fp32 [n].
at::Tensor replace_by_gradient(const at::Tensor& logits, const std::int64_t* targets,
                               std::int64_t classes, const at::Tensor& bad) {
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  kernels::cuda::CrossEntropy in;
  in.type = type_of(logits);
  in.rows = count(logits.size(0)), in.cols = count(logits.size(1)), in.classes = count(classes);
  in.targets = targets;
  kernels::cuda::cross_entropy(in, address(logits), losses.mutable_data_ptr<float>(),
                               bad.mutable_data_ptr<int>(), stream_of(logits));
  return losses;
}

// The same if other ranks have the logits of other classes. The ranks exchange the maximum of each
// row, then the sum of its exponentials and the logit of its target.
at::Tensor replace_by_gradient(const VocabShard& shard, const at::Tensor& logits,
                               const std::int64_t* targets, std::int64_t classes,
                               const at::Tensor& bad) {
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  const auto fp32 = logits.options().dtype(at::kFloat);
  const at::Tensor own = at::empty({rows}, fp32), both = at::empty({2, rows}, fp32);
  kernels::cuda::ShardCrossEntropy in;
  in.type = type_of(logits);
  in.rows = count(rows), in.cols = count(columns);
  in.classes = count(std::clamp<std::int64_t>(classes - shard.first, 0, columns));
  in.first = shard.first, in.all_classes = classes, in.targets = targets;
  auto* sums = both.mutable_data_ptr<float>();
  kernels::cuda::shard_statistics(in, logits.const_data_ptr(), own.mutable_data_ptr<float>(), sums,
                                  sums + rows, bad.mutable_data_ptr<int>(), stream_of(logits));
  const at::Tensor top = own.clone();
  shard.max(top);
  both[0].mul_((own - top).exp_());
  shard.sum(both);
  const at::Tensor log_sum = both[0].log().add_(top);
  kernels::cuda::shard_gradient(in, address(logits), log_sum.const_data_ptr<float>(),
                                stream_of(logits));
  return log_sum - both[1];
}

struct Shard : torch::CustomClassHolder {
  std::optional<VocabShard> of;
};

struct LossFunction : torch::autograd::Function<LossFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& w,
                            const at::Tensor& targets, std::int64_t classes,
                            const c10::intrusive_ptr<Shard>& shard) {
    const at::Tensor h = as_rows(hidden);
    const bool want_h = hidden.requires_grad(), want_w = w.requires_grad();
    at::Tensor dh, dw;
    if (want_h) dh = at::empty(h.sizes(), h.options());
    if (want_w) dw = at::empty(w.sizes(), w.options().dtype(at::kFloat));
    const at::Tensor losses = at::empty({h.size(0)}, h.options().dtype(at::kFloat));
    const at::Tensor bad = at::zeros({1}, h.options().dtype(at::kInt));
    const std::int64_t step = rows_at_a_time(h, w);
    const at::Tensor block = at::empty({std::min(step, h.size(0)), w.size(0)}, h.options());
    for (std::int64_t begin = 0; begin < h.size(0); begin += step) {
      const std::int64_t n = std::min(step, h.size(0) - begin);
      const at::Tensor rows = h.narrow(0, begin, n), logits = block.narrow(0, 0, n);
      multiply_into(logits, rows, false, w, true, false);
      const std::int64_t* own = targets.const_data_ptr<std::int64_t>() + begin;
      losses.narrow(0, begin, n)
          .copy_(shard->of ? replace_by_gradient(*shard->of, logits, own, classes, bad)
                           : replace_by_gradient(logits, own, classes, bad));
      if (want_h) multiply_into(dh.narrow(0, begin, n), logits, false, w, false, false);
      if (want_w) multiply_into(dw, logits, true, rows, false, begin > 0);
    }
    // The host does not wait for the result: a failed check aborts the stream, as torch's own does.
    at::_assert_async(bad.eq(0), str("A target of the loss is out of range. Targets must be 0 to ",
                                     classes - 1, ", or -1 to ignore a row."));
    ctx->save_for_backward({dh, dw, w});
    ctx->saved_data["sizes"] = hidden.sizes().vec();
    remember_deferral(ctx);
    // The kernel for all classes gives ignored rows no loss.
    if (shard->of) losses.mul_(targets.ge(0));
    return losses.sum(at::kDouble).to(at::kFloat);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("linear_cross_entropy");
    const tensor_list saved = ctx->get_saved_variables();
    const at::Tensor &dh = saved[0], &dw = saved[1], &w = saved[2], &factor = grads[0];
    at::Tensor dx, weight;
    if (dh.defined()) {
      dx = dh.mul(factor.to(dh.scalar_type())).view(ctx->saved_data["sizes"].toIntVector());
    }
    if (dw.defined()) {
      DeferredGradients* later = deferral_of(ctx);
      if (later != nullptr && is_deferrable(w)) {
        later->push(w, [dw, factor, type = w.scalar_type()] { return dw.mul(factor).to(type); });
      } else {
        const ParamGradient to(w);
        at::Tensor place = to.to();  // computed in fp32, rounded once
        to.add() ? place.add_(dw.mul(factor)) : at::mul_out(place, dw, factor);
        weight = to.result();
      }
    }
    return {dx, weight, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t classes,
                                std::optional<VocabShard> shard) {
  auto kept = c10::make_intrusive<Shard>();
  kept->of = std::move(shard);
  return LossFunction::apply(hidden, weight, targets, classes, kept);
}

}  // namespace tessera::nn::gpu
