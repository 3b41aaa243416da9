#include "tessera/tensor_parallel/adapter.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"
#include "tessera/tensor_parallel/layers.h"

namespace tessera::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

struct AdapterContext : torch::CustomClassHolder {
  std::vector<AdapterUse> uses;     // without their matrices, which autograd holds
  std::vector<std::int64_t> sizes;  // sizes of x
  std::optional<at::ScalarType> bias;

  bool drops() const { return !uses.empty() && uses[0].dropout.rate > 0; }
  // Returns the rows of x, or of its gradient, after the dropout of adapter i.
  at::Tensor seen_by(std::size_t i, const at::Tensor& rows) const {
    const AdapterUse& use = uses[i];
    return rows_of(nn::dropped_columns(rows.view(sizes), use.dropout, use.first_input, use.inputs));
  }
};

// y += scale · h · bᵀ
void add_product(const at::Tensor& y, const at::Tensor& h, const at::Tensor& b, double scale) {
  if (nn::multiplies_in_fp32(y)) {
    y.add_(nn::gemm_nt(h.contiguous(), b), scale);
  } else {
    y.addmm_(h, b.t(), 1, scale);
  }
}

// `matrices` are A and B of each adapter in turn. The A's are concatenated, so that x is multiplied
// by all of them at once, unless dropout gives each a different input.
struct AdaptedLinear : torch::autograd::Function<AdaptedLinear> {
  static at::Tensor all_a(at::TensorList matrices) {
    tensor_list list;
    for (std::size_t i = 0; i < matrices.size(); i += 2) list.push_back(matrices[i]);
    return list.size() == 1 ? list[0] : at::cat(list);
  }

  // Returns x · Aᵀ of all adapters, concatenated along the columns.
  static at::Tensor low_products(const AdapterContext& context, const at::Tensor& rows,
                                 at::TensorList matrices) {
    if (!context.drops()) return nn::gemm_nt(rows, all_a(matrices));
    tensor_list parts;
    for (std::size_t i = 0; i < context.uses.size(); ++i) {
      parts.push_back(nn::gemm_nt(context.seen_by(i, rows), matrices[2 * i]));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  }

  // Given the gradients of those, adds the gradient of x to dx, if it is defined, and sets those of
  // the A's.
  static void low_gradients(const AdapterContext& context, const at::Tensor& x,
                            at::TensorList matrices, const tensor_list& dh, const at::Tensor& dx,
                            tensor_list& da) {
    if (context.drops()) {
      for (std::size_t i = 0; i < dh.size(); ++i) {
        const auto g = nn::product_gradients(dh[i], context.seen_by(i, x), matrices[2 * i],
                                             dx.defined(), true);
        if (dx.defined()) dx.add_(context.seen_by(i, g.dx));
        da.push_back(g.dw);
      }
      return;
    }
    const at::Tensor all = dh.size() == 1 ? dh[0] : at::cat(dh, 1);
    const auto g = nn::product_gradients(all, x, all_a(matrices), dx.defined(), true);
    if (dx.defined()) dx.add_(g.dx);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < dh.size(); ++i) {
      const std::int64_t rank = matrices[2 * i].size(0);
      da.push_back(g.dw.narrow(0, begin, rank));
      begin += rank;
    }
  }

  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<AdapterContext>& context,
                            const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& bias, at::TensorList matrices) {
    const at::Tensor rows = rows_of(x);
    context->sizes = x.sizes().vec();
    if (bias) context->bias = bias->scalar_type();
    tensor_list operands = {x, w};
    operands.insert(operands.end(), matrices.begin(), matrices.end());
    const tensor_list made =
        nn::keep_in_selective("adapted linear", operands, [&]() -> tensor_list {
          const at::Tensor h = low_products(*context, rows, matrices);
          const at::Tensor y = nn::gemm_nt(rows, w, bias.value_or(at::Tensor()));
          std::int64_t begin = 0;
          for (std::size_t i = 0; i < context->uses.size(); ++i) {
            const at::Tensor &a = matrices[2 * i], &b = matrices[2 * i + 1];
            add_product(y.narrow(1, context->uses[i].first, b.size(0)),
                        h.narrow(1, begin, a.size(0)), b, context->uses[i].scale);
            begin += a.size(0);
          }
          return {y, h};
        });
    tensor_list saved = {rows, w, made[1]};
    saved.insert(saved.end(), matrices.begin(), matrices.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["context"] = c10::IValue::make_capsule(context);
    std::vector<std::int64_t> sizes = context->sizes;
    sizes.back() = w.size(0);
    return made[0].view(sizes);
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    nn::refuse_second_derivatives("adapted_linear");
    auto capsule = ctx->saved_data["context"].toCapsule();
    const AdapterContext& context = *static_cast<AdapterContext*>(capsule.get());
    const tensor_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &h = saved[2];
    const at::TensorList matrices = at::TensorList(saved).slice(3);
    const at::Tensor dy = rows_of(grads[0]);
    const bool want_x = ctx->needs_input_grad(0);
    const std::size_t first = context.bias ? 3 : 2;  // index among the tensor inputs
    const auto wanted = [&](std::size_t i) { return ctx->needs_input_grad(first + i); };

    tensor_list dh, result(4 + matrices.size());
    bool want_low = want_x;  // dh of all adapters
    for (std::size_t i = 0; i < context.uses.size(); ++i) want_low = want_low || wanted(2 * i);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < context.uses.size(); ++i) {
      const at::Tensor &a = matrices[2 * i], &b = matrices[2 * i + 1];
      const auto g =
          nn::product_gradients(dy.narrow(1, context.uses[i].first, b.size(0)),
                                h.narrow(1, begin, a.size(0)), b, want_low, wanted(2 * i + 1));
      begin += a.size(0);
      if (g.dw.defined()) result[4 + 2 * i + 1] = g.dw.mul_(context.uses[i].scale);
      if (want_low) dh.push_back(g.dx.mul_(context.uses[i].scale));
    }
    nn::ProductGradients g = nn::product_gradients(dy, x, w, want_x, ctx->needs_input_grad(1));
    if (want_low) {
      tensor_list da;
      low_gradients(context, x, matrices, dh, want_x ? g.dx : at::Tensor(), da);
      for (std::size_t i = 0; i < da.size(); ++i) {
        if (wanted(2 * i)) result[4 + 2 * i] = da[i];
      }
    }
    if (want_x) result[1] = g.dx.view(context.sizes);
    result[2] = g.dw;
    if (context.bias && ctx->needs_input_grad(2)) result[3] = dy.sum(0).to(*context.bias);
    return result;
  }
};

}  // namespace

AdapterImpl::AdapterImpl(const Axis& axis, const ParamSpec& a, const ParamSpec& b, double s,
                         const nn::ParamOptions& options, std::string name)
    : scale(s), operation(std::move(name)), a_(a), b_(b) {
  const auto make = [&](const ParamSpec& spec) {
    return register_parameter(
        spec.name, nn::new_parameter(local_shape(spec, axis.axes(), axis.coordinate()), options));
  };
  A = make(a_);
  B = make(b_);
}

at::Tensor adapted_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                          const std::vector<AdapterUse>& adapters) {
  auto context = c10::make_intrusive<AdapterContext>();
  tensor_list matrices;
  for (const AdapterUse& use : adapters) {
    matrices.push_back(use.a);
    matrices.push_back(use.b);
    AdapterUse& kept = context->uses.emplace_back(use);
    kept.a = kept.b = at::Tensor();
  }
  return AdaptedLinear::apply(context, x, w, b.defined() ? std::optional(b) : std::nullopt,
                              at::TensorList(matrices));
}

std::vector<AdapterUse> adapters_in_use(const Axis& axis,
                                        const std::vector<std::shared_ptr<AdapterImpl>>& adapters,
                                        const std::vector<std::int64_t>& first,
                                        const std::string& label) {
  tensor_list whole, b;  // held by every rank; sharded B's
  std::vector<ParamSpec> cut;
  for (const Adapter& adapter : adapters) {
    const std::vector<ParamSpec> specs = adapter->specs();
    const bool by_inputs = specs[0].cut_along(tessera::Axis::tp) != nullptr;
    whole.push_back(by_inputs ? adapter->B : adapter->A);
    if (by_inputs) continue;
    b.push_back(adapter->B);
    cut.push_back(specs[1]);
  }
  whole = copy_to(axis.group, whole, label + " adapters");
  b = sum_shared(axis.group, b, cut, label + " adapters");
  const std::shared_ptr<const nn::Pass> pass = nn::current_pass();
  std::vector<AdapterUse> uses;
  std::size_t next = 0;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const Adapter& adapter = adapters[i];
    const bool by_outputs = adapter->specs()[0].cut_along(tessera::Axis::tp) == nullptr;
    AdapterUse& use = uses.emplace_back();
    use.a = by_outputs ? whole[i] : adapter->A;
    use.b = by_outputs ? b[next++] : whole[i];
    use.scale = adapter->scale;
    use.first = first[i];
    use.dropout = nn::adapter_dropout_of(pass.get(), adapter->operation);
    use.first_input = by_outputs ? 0 : axis.rank() * adapter->A.size(1);
    use.inputs = adapter->specs()[0].shape[1];
  }
  return uses;
}

}  // namespace tessera::tensor_parallel
