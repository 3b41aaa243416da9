#include "tessera/experts/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/experts/apply.h"
#include "tessera/experts/exchange.h"
#include "tessera/experts/router.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/pass.h"
#include "tessera/nn/recompute.h"
#include "tessera/tensor_parallel/collectives.h"
#include "tessera/tensor_parallel/layers.h"

namespace tessera::experts {
namespace {

// Parameters of a linear whose product another module computes.
class MatrixImpl : public torch::nn::Module, public tensor_parallel::Sharded {
 public:
  MatrixImpl(const tensor_parallel::Axis& axis, std::vector<ParamSpec> specs,
             const nn::ParamOptions& options)
      : specs_(std::move(specs)) {
    for (const ParamSpec& spec : specs_) {
      const at::Tensor param =
          nn::new_parameter(local_shape(spec, axis.axes(), axis.coordinate()), options);
      (spec.name == "weight" ? weight : bias) = register_parameter(spec.name, param);
    }
  }
  std::vector<ParamSpec> specs() const override { return specs_; }

  at::Tensor weight, bias;

 private:
  std::vector<ParamSpec> specs_;
};
TORCH_MODULE(Matrix);

struct ExpertModuleImpl : torch::nn::Module {
  Matrix fc = nullptr, proj2 = nullptr;
};

// Specs of fc and proj2 of an MLP of a width.
std::vector<ParamSpec> fc_specs(const LayerOptions& options, std::int64_t width, bool of_expert) {
  const std::int64_t out = options.gated ? 2 * width : width;
  ParamSpec::Cut cut{Axis::tp, 0};
  if (options.gated) cut.segments = {{width, width}, {width, width}};
  std::vector<ParamSpec> specs = {{"weight", {out, options.hidden}, {cut}, of_expert}};
  if (options.biases) specs.push_back({"bias", {out}, {cut}, of_expert});
  return specs;
}
std::vector<ParamSpec> proj2_specs(const LayerOptions& options, std::int64_t width,
                                   bool of_expert) {
  std::vector<ParamSpec> specs = {{"weight", {options.hidden, width}, {{Axis::tp, 1}}, of_expert}};
  if (options.biases) specs.push_back({"bias", {options.hidden}, {}, of_expert});
  return specs;
}

void check_width(const std::string& label, const char* what, std::int64_t width, int tp) {
  if (width >= 1 && width % tp == 0) return;
  throw UsageError(str(quote(label), ": ", what, " of width ", width, " on ", tp,
                       " tensor-parallel ranks. The width must be a multiple of the ranks."));
}

void check(const Ranks& ranks, const LayerOptions& options) {
  const Experts& experts = options.experts;
  const std::string label = quote(options.label);
  if (options.hidden < 1 || experts.count < 1 || experts.per_token < 1 ||
      experts.per_token > experts.count || experts.count >= 1 << 20) {
    throw UsageError(str(label, ": ", experts.count, " experts, ", experts.per_token,
                         " for each token, hidden size ", options.hidden,
                         ". The sizes must be at least 1, the experts fewer than 1048576 and not "
                         "fewer than those of a token."));
  }
  check_width(options.label, "experts", experts.width, ranks.tp.size());
  if (experts.shared_width != 0) {
    check_width(options.label, "a shared expert", experts.shared_width, ranks.tp.size());
  }
  if (experts.shared_gate && experts.shared_width == 0) {
    throw UsageError(str(label,
                         ": a gate of shared experts is given, but there are none. Set "
                         "shared_width, or unset shared_gate."));
  }
  if (ranks.ep.size() > experts.count) {
    throw UsageError(str(label, ": ", experts.count, " experts on ", ranks.ep.size(),
                         " expert-parallel ranks. Each rank needs at least one: use at most ",
                         experts.count, " ranks."));
  }
  if (options.activation == Activation::silu && !options.gated) {
    throw UsageError(str(label,
                         ": silu without a gate. Experts with silu have a gate; use gelu, "
                         "gelu_tanh or relu without one."));
  }
}

}  // namespace

struct MixtureOfExpertsImpl::State {
  Matrix router = nullptr, shared_gate = nullptr;
  std::vector<std::shared_ptr<ExpertModuleImpl>> experts;
  std::shared_ptr<ExpertModuleImpl> shared;
  at::Tensor selection_bias;  // undefined without one
  // Sums since take_load(), on the device of the tokens. Their memory stays the same, for CUDA
  // graphs.
  at::Tensor tokens, sums;
  double rows = 0;
};

MixtureOfExpertsImpl::MixtureOfExpertsImpl(Ranks ranks, const LayerOptions& options)
    : ranks_(std::move(ranks)), options_(options), state_(std::make_shared<State>()) {
  check(ranks_, options_);
  const Experts& experts = options_.experts;
  const ExpertRange range = experts_of(experts.count, ranks_.ep.size(), ranks_.ep.rank());
  first_ = range.first;
  last_ = range.last;
  const auto matrix = [&](torch::nn::Module& parent, const char* name,
                          std::vector<ParamSpec> specs) {
    return parent.register_module(name, Matrix(ranks_.tp, std::move(specs), options_.tensors));
  };
  const auto mlp = [&](const std::string& name, std::int64_t width, bool of_expert) {
    auto result = register_module(name, std::make_shared<ExpertModuleImpl>());
    result->fc = matrix(*result, "fc", fc_specs(options_, width, of_expert));
    result->proj2 = matrix(*result, "proj2", proj2_specs(options_, width, of_expert));
    return result;
  };
  state_->router = matrix(*this, "router", {{"weight", {experts.count, options_.hidden}}});
  for (std::int64_t e = first_; e < last_; ++e) {
    state_->experts.push_back(mlp(std::to_string(e), experts.width, true));
  }
  if (experts.shared_width > 0) state_->shared = mlp("shared", experts.shared_width, false);
  if (experts.shared_gate) {
    state_->shared_gate = matrix(*this, "shared_gate", {{"weight", {1, options_.hidden}}});
  }
  if (experts.selection_bias) {
    state_->selection_bias = register_buffer(
        "selection_bias", at::zeros({experts.count}, options_.tensors.tensors.dtype(at::kFloat)));
  }
}

std::vector<ParamSpec> MixtureOfExpertsImpl::specs() const { return {}; }

namespace {

// Returns the tokens of a call and the pass in which it runs.
TokenRows rows_of(const at::Tensor& x, const Ranks& ranks, const nn::Pass* pass,
                  const LayerOptions& options) {
  TokenRows rows;
  rows.rows = x.size(0);
  rows.tokens = x.size(1);
  if (ranks.cp.size() > 1) rows.part = {ranks.cp.rank(), ranks.cp.size()};
  if (pass != nullptr && pass->part != rows.part) {
    throw UsageError(str(quote(options.label), ": the pass gives this rank part ", pass->part.index,
                         " of ", pass->part.parts, " of the tokens, but the layer has rank ",
                         rows.part.index, " of ", rows.part.parts,
                         " in Ranks::cp. Make the layer with "
                         "LayerContext::experts()."));
  }
  if (rows.tokens % rows.part.chunks() != 0) {
    throw UsageError(str(quote(options.label), ": ", rows.tokens,
                         " tokens on this rank. With context parallelism the number must be even: "
                         "each rank has two chunks of equal length."));
  }
  const std::int64_t all = rows.tokens * rows.part.parts;
  rows.row_tokens = pass != nullptr && pass->row_tokens > 0 ? pass->row_tokens : all;
  if (rows.row_tokens > all) {
    throw UsageError(str(quote(options.label), ": rows of ", rows.row_tokens,
                         " tokens in the pass, but the tensors have ", all, ". Pass::row_tokens ",
                         "must be the number without padding."));
  }
  return rows;
}

// Activation function of an MLP that every token passes.
at::Tensor shared_activation(const at::Tensor& h, const LayerOptions& options) {
  if (options.gated && options.activation == Activation::silu) return nn::swiglu(h);
  const auto function = [&](const at::Tensor& x) {
    switch (options.activation) {
      case Activation::gelu_tanh: return nn::gelu(x);
      case Activation::gelu: return at::gelu(x);
      case Activation::relu: return at::relu(x);
      case Activation::silu: return at::silu(x);
    }
    return at::Tensor();
  };
  if (!options.gated) return function(h);
  const auto parts = h.chunk(2, -1);
  return function(parts[0].contiguous()) * parts[1];
}

}  // namespace

// [Note: experts and tensor parallelism] The tokens enter the tensor-parallel region once, and
// router, experts, shared expert and gate all compute from the same tensor. Each rank adds its part
// of the experts' results, so its gradients of everything before, such as weights and logits, are
// parts of sums too: the region's backward sums those of the tokens, and copy_to() those of the
// router's and the gate's weights. The losses enter on the first rank only.
at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& x) {
  if (x.dim() != 3 || x.size(2) != options_.hidden) {
    throw UsageError(tessera::str(quote(options_.label), ": a tensor ", x.sizes(),
                                  ". It must be [batch, tokens, ", options_.hidden, "]."));
  }
  const std::shared_ptr<const nn::Pass> pass = nn::current_pass();
  const tensor_parallel::Axis& tp = ranks_.tp;
  const std::string& label = options_.label;
  const at::Tensor whole = tensor_parallel::copy_to_region(tp, x, label);
  RouterCall router{
      options_.experts, rows_of(whole, ranks_, pass.get(), options_), {}, ranks_.cp, label};
  if (is_training() && pass != nullptr && options_.experts.jitter > 0) {
    router.jitter = {options_.experts.jitter, pass->seed, stream_of(label + ".jitter"),
                     pass->first_sample};
  }
  const at::Tensor tokens = whole.reshape({-1, options_.hidden});
  const auto summed = [&](const at::Tensor& weight, const char* name) {
    return tensor_parallel::copy_to(tp.group, weight, label + name);
  };
  const Routed routed =
      route(tokens, summed(state_->router->weight, ".router"), state_->selection_bias, router);
  add_to_load(routed.sent, routed.sums, router.rows.rows);
  std::vector<ExpertParams> params;
  for (const auto& each : state_->experts) {
    params.push_back({each->fc->weight, each->fc->bias, each->proj2->weight, each->proj2->bias});
  }
  const ExpertKind kind{{options_.gated, options_.activation}, tp.rank() == 0};
  at::Tensor y = apply_experts(tokens, routed.weights, routed.experts, params,
                               {options_.experts.count, ranks_.ep, kind, options_.biases, label});
  if (state_->shared != nullptr) y = y + shared(tokens);
  y = tensor_parallel::reduce_from_region(tp, y.view(whole.sizes()), label);
  if (pass == nullptr || tp.rank() != 0) return y;
  if (options_.experts.balance_loss == 0 && options_.experts.z_loss == 0) return y;
  return nn::with_auxiliary_loss(y, routed.loss, *pass);
}

at::Tensor MixtureOfExpertsImpl::shared(const at::Tensor& tokens) const {
  const ExpertModuleImpl& mlp = *state_->shared;
  const at::Tensor h = nn::linear(tokens, mlp.fc->weight, mlp.fc->bias);
  at::Tensor y = nn::linear(shared_activation(h, options_), mlp.proj2->weight, {});
  if (mlp.proj2->bias.defined()) {
    y = tensor_parallel::add_once(ranks_.tp.group, y, mlp.proj2->bias);
  }
  if (state_->shared_gate.is_empty()) return y;
  const at::Tensor gate = tensor_parallel::copy_to(ranks_.tp.group, state_->shared_gate->weight,
                                                   options_.label + ".shared_gate");
  return y * nn::linear(tokens, gate, {}).sigmoid();
}

void MixtureOfExpertsImpl::add_to_load(const at::Tensor& sent, const at::Tensor& sums,
                                       std::int64_t rows) {
  if (!is_training() || nn::is_recomputing()) return;
  const at::NoGradGuard no_grad;
  State& state = *state_;
  if (!state.tokens.defined()) {
    state.tokens = at::zeros_like(sent);
    state.sums = at::zeros_like(sums);
  }
  state.tokens.add_(sent);
  state.sums.add_(sums);
  state.rows += static_cast<double>(rows) / ranks_.cp.size();
}

Load MixtureOfExpertsImpl::take_load() {
  State& state = *state_;
  Load load;
  load.rows = std::exchange(state.rows, 0.0);
  if (!state.tokens.defined()) {
    load.tokens = at::zeros({options_.experts.count}, at::kLong);
    return load;
  }
  const at::Tensor sums = state.sums.to(at::kCPU, at::kDouble, false, /*copy=*/true);
  const auto* of = sums.const_data_ptr<double>();
  load.tokens = state.tokens.to(at::kCPU, at::kLong, false, /*copy=*/true);
  load.dropped = of[kDropped];
  load.routed = of[kRouted];
  load.entropy = of[kEntropy];
  load.balance = of[kBalance];
  load.z = of[kZ];
  state.tokens.zero_();
  state.sums.zero_();
  return load;
}

void MixtureOfExpertsImpl::update_selection_bias(const at::Tensor& tokens) {
  const Experts& experts = options_.experts;
  if (experts.bias_rate == 0) return;
  if (!state_->selection_bias.defined() || tokens.numel() != experts.count) {
    throw UsageError(str(quote(options_.label), ": update_selection_bias() got counts of ",
                         tokens.numel(), " experts, must be ", experts.count,
                         state_->selection_bias.defined()
                             ? ""
                             : ", and the layer has no bias. Set Experts::selection_bias"));
  }
  const at::NoGradGuard no_grad;
  at::Tensor bias = state_->selection_bias;
  const at::Tensor counts = tokens.to(bias.device(), at::kDouble);
  bias.add_((counts.mean() - counts).sign().to(at::kFloat), experts.bias_rate);
}

}  // namespace tessera::experts
