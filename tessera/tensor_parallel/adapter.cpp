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

// y += scale · h · bᵀ
void add_product(const at::Tensor& y, const at::Tensor& h, const at::Tensor& b, double scale) {
  if (nn::multiplies_in_fp32(y)) {
    y.add_(nn::gemm_nt(h.contiguous(), b), scale);
  } else {
    y.addmm_(h, b.t(), 1, scale);
  }
}

// The A's are concatenated, so that x is multiplied by all of them at once, unless dropout gives
// each a different input.
at::Tensor all_a(at::TensorList matrices) {
  tensor_list list;
  for (std::size_t i = 0; i < matrices.size(); i += 2) list.push_back(matrices[i]);
  return list.size() == 1 ? list[0] : at::cat(list);
}

struct AdapterContext : torch::CustomClassHolder {
  AdapterProducts products;
  std::optional<at::ScalarType> bias;
};

struct AdaptedLinear : torch::autograd::Function<AdaptedLinear> {
  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<AdapterContext>& context,
                            const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& bias, at::TensorList matrices) {
    const at::Tensor rows = rows_of(x);
    AdapterProducts& products = context->products;
    products.sizes = x.sizes().vec();
    if (bias) context->bias = bias->scalar_type();
    tensor_list operands = {x, w};
    operands.insert(operands.end(), matrices.begin(), matrices.end());
    const tensor_list made =
        nn::keep_in_selective("adapted linear", operands, [&]() -> tensor_list {
          const at::Tensor y = nn::gemm_nt(rows, w, bias.value_or(at::Tensor()));
          return {y, products.add_to(y, rows, matrices)};
        });
    tensor_list saved = {rows, w, made[1]};
    saved.insert(saved.end(), matrices.begin(), matrices.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["context"] = c10::IValue::make_capsule(context);
    std::vector<std::int64_t> sizes = products.sizes;
    sizes.back() = w.size(0);
    return made[0].view(sizes);
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    nn::refuse_second_derivatives("adapted_linear");
    auto capsule = ctx->saved_data["context"].toCapsule();
    const AdapterContext& context = *static_cast<AdapterContext*>(capsule.get());
    const AdapterProducts& products = context.products;
    const tensor_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &h = saved[2];
    const at::TensorList matrices = at::TensorList(saved).slice(3);
    const at::Tensor dy = rows_of(grads[0]);
    const bool want_x = ctx->needs_input_grad(0);
    tensor_list low(matrices.size());
    const tensor_list dh = products.backward(dy, h, matrices, low);
    nn::ProductGradients g = nn::product_gradients(dy, x, w, want_x, ctx->needs_input_grad(1));
    if (want_x) products.add_input_gradient(g.dx, dh, matrices);
    products.weight_gradients(x, dh, matrices, low);
    tensor_list result = {at::Tensor(), want_x ? g.dx.view(products.sizes) : at::Tensor(), g.dw,
                          at::Tensor()};
    if (context.bias && ctx->needs_input_grad(2)) result[3] = dy.sum(0).to(*context.bias);
    result.insert(result.end(), low.begin(), low.end());
    return result;
  }
};

}  // namespace

at::Tensor AdapterProducts::seen_by(std::size_t i, const at::Tensor& rows) const {
  const AdapterUse& use = uses[i];
  return rows_of(nn::dropped_columns(rows.view(sizes), use.dropout, use.first_input, use.inputs));
}

at::Tensor AdapterProducts::add_to(const at::Tensor& y, const at::Tensor& x,
                                   at::TensorList matrices) const {
  at::Tensor h;
  if (drops()) {
    tensor_list parts;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      parts.push_back(nn::gemm_nt(seen_by(i, x), matrices[2 * i]));
    }
    h = parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  } else {
    h = nn::gemm_nt(x, all_a(matrices));
  }
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const at::Tensor &a = matrices[2 * i], &b = matrices[2 * i + 1];
    add_product(y.narrow(1, uses[i].first, b.size(0)), h.narrow(1, begin, a.size(0)), b,
                uses[i].scale);
    begin += a.size(0);
  }
  return h;
}

tensor_list AdapterProducts::backward(const at::Tensor& dy, const at::Tensor& h,
                                      at::TensorList matrices, tensor_list& grads) const {
  tensor_list dh;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const at::Tensor &a = matrices[2 * i], &b = matrices[2 * i + 1];
    const auto g = nn::product_gradients(dy.narrow(1, uses[i].first, b.size(0)),
                                         h.narrow(1, begin, a.size(0)), b, true, b.requires_grad());
    begin += a.size(0);
    if (g.dw.defined()) grads[2 * i + 1] = g.dw.mul_(uses[i].scale);
    dh.push_back(g.dx.mul_(uses[i].scale));
  }
  return dh;
}

void AdapterProducts::add_input_gradient(const at::Tensor& dx, const tensor_list& dh,
                                         at::TensorList matrices) const {
  if (!drops()) {
    const at::Tensor all = dh.size() == 1 ? dh[0] : at::cat(dh, 1);
    dx.add_(nn::product_gradients(all, {}, all_a(matrices), true, false).dx);
    return;
  }
  for (std::size_t i = 0; i < dh.size(); ++i) {
    dx.add_(seen_by(i, nn::product_gradients(dh[i], {}, matrices[2 * i], true, false).dx));
  }
}

void AdapterProducts::weight_gradients(const at::Tensor& x, const tensor_list& dh,
                                       at::TensorList matrices, tensor_list& grads) const {
  tensor_list da;
  if (drops()) {
    for (std::size_t i = 0; i < dh.size(); ++i) {
      da.push_back(nn::product_gradients(dh[i], seen_by(i, x), matrices[2 * i], false, true).dw);
    }
  } else {
    const at::Tensor all = dh.size() == 1 ? dh[0] : at::cat(dh, 1);
    const at::Tensor together = nn::product_gradients(all, x, {}, false, true).dw;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < dh.size(); ++i) {
      da.push_back(together.narrow(0, begin, dh[i].size(1)));
      begin += dh[i].size(1);
    }
  }
  for (std::size_t i = 0; i < da.size(); ++i) {
    if (matrices[2 * i].requires_grad()) grads[2 * i] = da[i];
  }
}

AdapterProducts products_of(const std::vector<AdapterUse>& adapters, tensor_list& matrices) {
  AdapterProducts products;
  for (const AdapterUse& use : adapters) {
    matrices.push_back(use.a);
    matrices.push_back(use.b);
    AdapterUse& kept = products.uses.emplace_back(use);
    kept.a = kept.b = at::Tensor();
  }
  return products;
}

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
  context->products = products_of(adapters, matrices);
  return AdaptedLinear::apply(context, x, w, b.defined() ? std::optional(b) : std::nullopt,
                              at::TensorList(matrices));
}

std::vector<AdapterUse> adapters_in_use(const Axis& axis,
                                        const std::vector<std::shared_ptr<AdapterImpl>>& adapters,
                                        const std::vector<std::int64_t>& first,
                                        const std::string& label) {
  tensor_list whole, b;  // held by every rank; sharded B's
  std::vector<ParamSpec> cut;
  for (const std::shared_ptr<AdapterImpl>& adapter : adapters) {
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
