#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"
#include "tessera/tensor_parallel/layers.h"
#include "tessera/tensor_parallel/overlap.h"

namespace tessera::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct LinearContext : torch::CustomClassHolder {
  LinearContext(Axis a, std::string l, std::vector<ParamSpec> s = {})
      : axis(std::move(a)), label(std::move(l)), specs(std::move(s)) {}
  Axis axis;
  std::string label;
  std::vector<ParamSpec> specs;
};

const LinearContext& linear_context_of(AutogradContext* ctx) {
  return *static_cast<LinearContext*>(ctx->saved_data["context"].toCapsule().get());
}

// copy_to_region overlapped with the product: [Note: overlap].
struct ColumnLinear : torch::autograd::Function<ColumnLinear> {
  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<LinearContext>& context,
                            const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b) {
    const Gathered gathered =
        gather_matmul(context->axis, x, w, b.value_or(at::Tensor()), context->label);
    std::vector<std::int64_t> sizes = x.sizes().vec();
    if (context->axis.sequence) sizes[sizes.size() - 2] *= context->axis.size();
    ctx->save_for_backward({w.requires_grad() ? gathered.x : at::Tensor(), w});
    ctx->saved_data["context"] = c10::IValue::make_capsule(context);
    ctx->saved_data["sizes"] = sizes;
    if (b) ctx->saved_data["bias"] = b->scalar_type();
    nn::remember_deferral(ctx);
    sizes.back() = w.size(0);
    return gathered.product.view(sizes);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("column_parallel_linear");
    const LinearContext& context = linear_context_of(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], dy = matrix(grads[0]);
    Pending dx;
    if (ctx->needs_input_grad(0)) {
      const at::Tensor whole = nn::product_gradients(dy, x, w, true, false).dx;
      dx = start_input_gradient(context.axis, whole.view(ctx->saved_data["sizes"].toIntVector()),
                                context.label);
    }
    const at::Tensor dw = nn::weight_gradient(ctx, dy, x, w);
    at::Tensor db;
    if (const auto bias = ctx->saved_data["bias"]; !bias.isNone() && ctx->needs_input_grad(2)) {
      db = dy.sum(0).to(bias.toScalarType());
    }
    return {at::Tensor(), dx.wait(), dw, db};
  }
};

struct RowLinear : torch::autograd::Function<RowLinear> {
  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<LinearContext>& context,
                            const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b) {
    const Axis& axis = context->axis;
    const at::Tensor rows = matrix(x);
    ctx->save_for_backward({w.requires_grad() ? rows : at::Tensor(), w});
    ctx->saved_data["overlaps"] = overlaps(axis, x, w);
    ctx->saved_data["context"] = c10::IValue::make_capsule(context);
    ctx->saved_data["sizes"] = x.sizes().vec();
    if (b) ctx->saved_data["bias"] = b->scalar_type();
    nn::remember_deferral(ctx);
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = w.size(0);
    return nn::keep_in_selective("row-parallel linear", {x, w}, [&]() -> tensor_list {
      const at::Tensor own = axis.rank() == 0 ? b.value_or(at::Tensor()) : at::Tensor();
      if (overlaps(axis, x, w)) return {matmul_reduce(axis, x, w, own, context->label)};
      const at::Tensor product = nn::gemm_nt(rows, w, own).view(sizes);
      if (axis.sequence) return {reduce_scatter(axis.group, product, context->label)};
      return {all_reduce_(axis.group, product.contiguous(), context->label)};
    })[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("row_parallel_linear");
    const LinearContext& context = linear_context_of(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1];
    at::Tensor dy;
    nn::ProductGradients g;
    if (context.axis.sequence && ctx->saved_data["overlaps"].toBool()) {
      const RowGradients gradients = gather_matmul_backward(
          context.axis, grads[0], w, ctx->needs_input_grad(0), context.label);
      dy = gradients.dy;
      g = {gradients.dx, nn::weight_gradient(ctx, dy, x, w)};
    } else {
      dy = matrix(context.axis.sequence
                      ? all_gather(context.axis.group, grads[0], context.label + " backward")
                      : grads[0]);
      g = nn::product_gradients(ctx, dy, x, w);
    }
    if (g.dx.defined()) g.dx = g.dx.view(ctx->saved_data["sizes"].toIntVector());
    at::Tensor db;
    if (const auto bias = ctx->saved_data["bias"]; !bias.isNone() && ctx->needs_input_grad(2)) {
      db = dy.sum(0).to(bias.toScalarType());
    }
    return {at::Tensor(), g.dx, g.dw, db};
  }
};

// Segment of a parameter with fewer parts than there are ranks.
struct SharedSegment {
  std::int64_t local = 0, length = 0;  // range along dim 0 of this rank's shard
  std::int64_t begin = 0, whole = 0;   // this rank's offset in the segment, and its length
};

std::vector<SharedSegment> shared_segments(const ParamSpec& spec, const Axis& axis) {
  std::vector<SharedSegment> result;
  const ParamSpec::Cut* const cut = spec.cut_along(tessera::Axis::tp);
  if (cut == nullptr) return result;
  const int t = axis.rank(), tp = axis.size();
  std::int64_t local = 0;
  for (const ParamSpec::Segment& segment : cut->segments) {
    const std::int64_t cuts = std::min<std::int64_t>(segment.parts, tp);
    const std::int64_t length = segment.length / cuts;
    if (cuts < tp) result.push_back({local, length, t * cuts / tp * length, segment.length});
    local += length;
  }
  return result;
}

struct SumShared : torch::autograd::Function<SumShared> {
  static tensor_list forward(AutogradContext* ctx, const c10::intrusive_ptr<LinearContext>& context,
                             at::TensorList params) {
    ctx->saved_data["context"] = c10::IValue::make_capsule(context);
    tensor_list same;
    for (const at::Tensor& param : params) same.push_back(param.detach());
    return same;
  }
  // Each rank copies its shard into zeros at its offset, and takes the sum from there.
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("sum_shared");
    const LinearContext& context = linear_context_of(ctx);
    tensor_list places, flat;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      for (const SharedSegment& s : shared_segments(context.specs[i], context.axis)) {
        std::vector<std::int64_t> sizes = grads[i].sizes().vec();
        sizes[0] = s.whole;
        at::Tensor whole = at::zeros(sizes, grads[i].options());
        whole.narrow(0, s.begin, s.length).copy_(grads[i].narrow(0, s.local, s.length));
        flat.push_back(whole.view({-1}));
      }
    }
    const at::Tensor all =
        all_reduce_(context.axis.group, at::cat(flat), context.label + " shared");
    tensor_list result(1);  // gradient of the context
    std::int64_t next = 0;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      at::Tensor grad = grads[i].clone();
      for (const SharedSegment& s : shared_segments(context.specs[i], context.axis)) {
        std::vector<std::int64_t> sizes = grad.sizes().vec();
        sizes[0] = s.whole;
        const std::int64_t count = c10::multiply_integers(sizes);
        grad.narrow(0, s.local, s.length)
            .copy_(all.narrow(0, next, count).view(sizes).narrow(0, s.begin, s.length));
        next += count;
      }
      result.push_back(std::move(grad));
    }
    return result;
  }
};

}  // namespace

at::Tensor column_parallel_linear(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                                  const at::Tensor& b, const std::string& label) {
  if (!overlaps(axis, x, w)) return nn::linear(copy_to_region(axis, x, label), w, b);
  const auto bias = b.defined() ? std::optional<at::Tensor>(b) : std::nullopt;
  return ColumnLinear::apply(c10::make_intrusive<LinearContext>(axis, label), x, w, bias);
}

at::Tensor row_parallel_linear(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                               const at::Tensor& b, const std::string& label) {
  if (axis.size() == 1) return nn::linear(x, w, b);
  const auto bias = b.defined() ? std::optional<at::Tensor>(b) : std::nullopt;
  return RowLinear::apply(c10::make_intrusive<LinearContext>(axis, label), x, w, bias);
}

std::vector<at::Tensor> sum_shared(const comm::Group& group, const std::vector<at::Tensor>& params,
                                   const std::vector<ParamSpec>& specs, const std::string& label) {
  const Axis axis{group};
  bool any = false;
  for (const ParamSpec& spec : specs) any = any || !shared_segments(spec, axis).empty();
  if (!any) return params;
  return SumShared::apply(c10::make_intrusive<LinearContext>(axis, label, specs),
                          at::TensorList(params));
}

}  // namespace tessera::tensor_parallel
