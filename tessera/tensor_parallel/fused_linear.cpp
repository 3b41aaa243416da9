#include "tessera/tensor_parallel/fused_linear.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "tessera/nn/deferred.h"
#include "tessera/nn/fp8.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/matmul_precision.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"
#include "tessera/tensor_parallel/overlap.h"

namespace tessera::tensor_parallel {
namespace {

using nn::Operand;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

struct FusedContext : torch::CustomClassHolder {
  Axis axis;
  std::string label;
  bool row = false;
  Operand::Kind kind = Operand::Kind::plain;
  double eps = 0;
  AdapterProducts adapters;
  std::vector<std::int64_t> sizes;  // of x
  bool wants_x = false, wants_operand = false;
  bool fp8 = false;  // [Note: fp8 linears]

  bool is_norm() const { return kind == Operand::Kind::norm; }
  // The collective is before the product (column) or after it (row).
  bool enters() const { return !row && axis.size() > 1; }
  bool leaves() const { return row && axis.size() > 1; }

  // Sizes with this number of columns: of x, of the input of the product, which has the whole
  // sequence, and of the result.
  std::vector<std::int64_t> own_sizes(std::int64_t columns) const {
    std::vector<std::int64_t> result = sizes;
    result.back() = columns;
    return result;
  }
  std::vector<std::int64_t> product_sizes(std::int64_t columns) const {
    std::vector<std::int64_t> result = own_sizes(columns);
    if (enters() && axis.sequence) result[result.size() - 2] *= axis.size();
    return result;
  }

  // Returns the rows that this rank multiplies, given the operand's value.
  at::Tensor enter(const at::Tensor& value) const {
    if (!enters() || !axis.sequence) return value;
    return matrix(all_gather(axis.group, value.view(own_sizes(value.size(1))), label));
  }
};

// Saved tensors before the matrices of the adapters.
enum Saved : std::size_t {
  kX,
  kWeight,
  kBias,
  kMean,
  kRstd,
  kMatrix,
  kMatrixBias,
  kLow,
  kLargestX,  // Fp8Scales
  kLargestWeight,
  kAdapters
};

// Computes the gradients of a product that was computed in the same precision.
class ProductGradient {
 public:
  ProductGradient(const FusedContext& c, const at::Tensor& dout, nn::Fp8Scales scales,
                  bool for_input, bool for_weight)
      : dout_(dout), scales_(std::move(scales)) {
    if (c.fp8) fp8_.emplace(dout, for_input, for_weight);
  }
  at::Tensor of_input(const at::Tensor& w) const {
    return fp8_ ? fp8_->input_gradient(w, scales_) : nn::gpu::input_gradient(dout_, w);
  }
  // Computes to = doutᵀ · x (+ to).
  void of_weight(const at::Tensor& x, const at::Tensor& to, bool add) const {
    fp8_ ? fp8_->weight_gradient(x, scales_, to, add)
         : nn::gpu::multiply_into(to, dout_, true, x, false, add);
  }

 private:
  at::Tensor dout_;
  nn::Fp8Scales scales_;
  std::optional<nn::Fp8Gradient> fp8_;
};

Operand operand_of(const FusedContext& c, const tensor_list& saved) {
  const at::Tensor x = saved[kX].defined() ? matrix(saved[kX]) : at::Tensor();
  return {c.kind, x, saved[kWeight], saved[kBias], saved[kMean], saved[kRstd], c.eps};
}

struct FusedLinear : torch::autograd::Function<FusedLinear> {
  // Computes the product with its collective. Returns {result, x · aᵀ of the adapters if there are
  // any, the scales in fp8}.
  static tensor_list compute(const FusedContext& c, const at::Tensor& value, const at::Tensor& w,
                             const at::Tensor& b, const at::Tensor& residual,
                             at::TensorList matrices) {
    const Axis& axis = c.axis;
    const at::Tensor shaped = value.view(c.own_sizes(value.size(1)));
    // A bias is added before the sum over the ranks, so only one rank adds it.
    const at::Tensor bias = c.leaves() && axis.rank() != 0 ? at::Tensor() : b;
    if (c.adapters.empty() && !c.fp8 && axis.overlap && overlaps(axis, shaped, w)) {
      if (c.row) return {matmul_reduce(axis, shaped, w, bias, c.label)};
      return {
          gather_matmul(axis, shaped, w, bias, c.label).product.view(c.product_sizes(w.size(0)))};
    }
    const at::Tensor rows = c.enter(value);
    at::Tensor out = at::empty(c.product_sizes(w.size(0)), value.options());
    nn::Fp8Scales scales;
    if (c.fp8) {
      scales = nn::fp8_product_into(out, rows, w, bias, residual);
    } else {
      nn::gpu::product_into(out, rows, w, bias, residual);
    }
    tensor_list made = {out};
    if (!c.adapters.empty()) made.push_back(c.adapters.add_to(matrix(out), rows, matrices));
    if (c.fp8) made.insert(made.end(), {scales.x, scales.w});
    if (!c.leaves()) return made;
    made[0] = axis.sequence ? reduce_scatter(axis.group, out, c.label)
                            : all_reduce_(axis.group, out, c.label);
    return made;
  }

  static tensor_list forward(AutogradContext* ctx, const c10::intrusive_ptr<FusedContext>& context,
                             const at::Tensor& x, const std::optional<at::Tensor>& branch,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias, const at::Tensor& w,
                             const std::optional<at::Tensor>& b,
                             const std::optional<at::Tensor>& residual, at::TensorList matrices) {
    FusedContext& c = *context;
    c.sizes = x.sizes().vec();
    c.wants_x = x.requires_grad() || (branch && branch->requires_grad());
    c.wants_operand =
        c.wants_x || (weight && weight->requires_grad()) || (bias && bias->requires_grad());
    Operand in{.kind = c.kind,
               .x = matrix(x),
               .weight = {},
               .bias = bias.value_or(at::Tensor()),
               .mean = {},
               .rstd = {}};
    at::Tensor value;
    if (c.is_norm()) {
      std::tie(in, value) = nn::norm_operand(in.x, branch ? matrix(*branch) : at::Tensor(),
                                             {*weight, in.bias, c.eps});
    } else {
      value = in.value();
    }
    c.adapters.sizes = c.product_sizes(value.size(1));
    tensor_list operands = {value, w, b.value_or(at::Tensor()), residual.value_or(at::Tensor())};
    operands.insert(operands.end(), matrices.begin(), matrices.end());
    const tensor_list made = nn::keep_in_selective("fused linear", operands, [&] {
      return compute(c, value, w, b.value_or(at::Tensor()),
                     residual ? matrix(*residual) : at::Tensor(), matrices);
    });
    tensor_list out = {made[0]};
    if (c.is_norm()) out.push_back(branch ? in.x.view(x.sizes()) : x.variable_data());
    // The sum is saved as an output, so that autograd makes no reference cycle.
    tensor_list saved = {c.is_norm() && branch ? out[1] : in.x,
                         in.weight,
                         in.bias,
                         in.mean,
                         in.rstd,
                         w,
                         b.value_or(at::Tensor()),
                         c.adapters.empty() ? at::Tensor() : made[1],
                         c.fp8 ? made[made.size() - 2] : at::Tensor(),
                         c.fp8 ? made.back() : at::Tensor()};
    // A frozen weight without adapters needs no input.
    const bool plain = c.kind == Operand::Kind::plain;
    if (plain && !w.requires_grad() && matrices.empty()) saved[kX] = at::Tensor();
    saved.insert(saved.end(), matrices.begin(), matrices.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["context"] = c10::IValue::make_capsule(context);
    ctx->saved_data["branch"] = branch.has_value();
    ctx->saved_data["residual"] = residual.has_value();
    ctx->set_materialize_grads(false);
    nn::remember_deferral(ctx);
    return out;
  }

  // Leaves the product for the gradient of w to a later pass, if there is one. Returns true then.
  static bool defer(AutogradContext* ctx, const c10::intrusive_ptr<FusedContext>& context,
                    const Operand& in, const at::Tensor& dout, const at::Tensor& w,
                    const nn::Fp8Scales& scales) {
    nn::DeferredGradients* later = nn::deferral_of(ctx);
    if (later == nullptr || !nn::is_deferrable(w)) return false;
    Operand kept = in;
    for (at::Tensor* tensor : {&kept.x, &kept.weight, &kept.bias}) {
      if (tensor->defined()) *tensor = tensor->detach();
    }
    later->push(w, [context, dout, kept, w, scales] {
      at::Tensor dw = at::empty(w.sizes(), dout.options());
      ProductGradient(*context, dout, scales, false, true)
          .of_weight(context->enter(kept.value()), dw, false);
      return dw;
    });
    return true;
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    nn::refuse_second_derivatives("a fused linear");
    auto capsule = ctx->saved_data["context"].toCapsule();
    const auto context = c10::static_intrusive_pointer_cast<FusedContext>(capsule);
    const FusedContext& c = *context;
    const at::Tensor past = grads.size() > 1 ? grads[1] : at::Tensor();
    const bool has_branch = ctx->saved_data["branch"].toBool();
    const tensor_list saved = ctx->get_saved_variables();
    const at::TensorList matrices = at::TensorList(saved).slice(kAdapters);
    tensor_list result(8 + matrices.size());
    if (!grads[0].defined()) {
      result[1] = past;
      if (has_branch) result[2] = past;
      return result;
    }
    const Operand in = operand_of(c, saved);
    const at::Tensor &w = saved[kMatrix], &b = saved[kMatrixBias];
    const bool gathers = c.leaves() && c.axis.sequence;
    const at::Tensor dout =
        matrix(gathers ? all_gather(c.axis.group, grads[0].contiguous(), c.label + " backward")
                       : grads[0]);

    tensor_list low(matrices.size());
    const tensor_list dh =
        c.adapters.empty() ? tensor_list() : c.adapters.backward(dout, saved[kLow], matrices, low);
    const nn::Fp8Scales scales{saved[kLargestX], saved[kLargestWeight]};
    const bool deferred = defer(ctx, context, in, dout, w, scales);
    const ProductGradient product(c, dout, scales, c.wants_operand, w.requires_grad() && !deferred);
    at::Tensor dvalue;
    if (c.wants_operand) {
      dvalue = product.of_input(w);
      if (!dh.empty()) c.adapters.add_input_gradient(dvalue, dh, matrices);
    }

    const bool needs_value = (w.requires_grad() && !deferred) || !dh.empty();
    const auto weight_gradients = [&](const at::Tensor& value) {
      const nn::gpu::ParamGradient dw(deferred ? at::Tensor() : w), db(b);
      if (dw) product.of_weight(value, dw.to(), dw.add());
      nn::gpu::bias_gradient(gathers ? dout : grads[0], db);
      if (!dh.empty()) c.adapters.weight_gradients(value, dh, matrices, low);
      result[5] = dw.result();
      result[6] = db.result();
    };

    Operand::Gradients g;
    const at::Tensor rows_past = past.defined() ? matrix(past) : past;
    if (c.wants_operand && c.enters() && (c.axis.overlap || c.axis.sequence)) {
      // The gradient is sent while those of the weights are computed.
      const Pending sum =
          start_input_gradient(c.axis, dvalue.view(c.product_sizes(dvalue.size(1))), c.label);
      weight_gradients(needs_value ? c.enter(in.value()) : at::Tensor());
      g = in.backward(matrix(sum.wait()), rows_past, /*overwrite=*/true);
    } else {
      at::Tensor value;
      if (c.wants_operand) {
        if (c.enters()) dvalue = all_reduce_(c.axis.group, dvalue, c.label + " backward");
        // The pass that computes the gradient of x recomputes the value.
        if (needs_value && in.kind != Operand::Kind::plain) {
          value = at::empty({dout.size(0), w.size(1)}, dout.options());
        }
        g = in.backward(dvalue, rows_past, /*overwrite=*/true, value);
      }
      if (needs_value && !value.defined()) value = c.enter(in.value());
      weight_gradients(value);
    }
    if (c.wants_x) {
      const at::Tensor dx = g.dx.view(c.sizes);
      nn::gpu::remember_statistics(dx, {g.sums, g.largest});
      result[1] = dx;
      if (has_branch) result[2] = dx;
    }
    result[3] = g.weight;
    result[4] = g.bias;
    if (ctx->saved_data["residual"].toBool()) result[7] = grads[0];
    std::move(low.begin(), low.end(), result.begin() + 8);
    return result;
  }
};

tensor_list run(const Axis& axis, bool row, const FusedInput& input, const FusedWeights& weights,
                const std::string& label) {
  auto context = c10::make_intrusive<FusedContext>();
  context->axis = axis;
  context->label = label;
  context->row = row;
  context->kind = input.kind;
  context->eps = input.norm.eps;
  context->fp8 = nn::computes_in_fp8();
  if (context->fp8) nn::check_fp8(weights.w, label);
  tensor_list matrices;
  context->adapters = products_of(weights.adapters, matrices);
  const bool norm = input.kind == Operand::Kind::norm;
  return FusedLinear::apply(
      context, input.x, optional_of(input.branch), optional_of(input.norm.weight),
      optional_of(norm ? input.norm.bias : input.bias), weights.w, optional_of(weights.b),
      optional_of(weights.residual), at::TensorList(matrices));
}

}  // namespace

std::pair<at::Tensor, at::Tensor> fused_column_linear(const Axis& axis, const FusedInput& input,
                                                      const FusedWeights& weights,
                                                      const std::string& label) {
  tensor_list out = run(axis, /*row=*/false, input, weights, label);
  return {std::move(out[0]), out.size() > 1 ? std::move(out[1]) : at::Tensor()};
}

at::Tensor fused_row_linear(const Axis& axis, const FusedInput& input, const FusedWeights& weights,
                            const std::string& label) {
  return std::move(run(axis, /*row=*/true, input, weights, label)[0]);
}

}  // namespace tessera::tensor_parallel
