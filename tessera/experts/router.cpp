#include "tessera/experts/router.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>

#include "tessera/experts/gpu.h"
#include "tessera/kernels/cuda/experts.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::experts {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Call of a router, with its results that have no gradient.
struct RouterState : torch::CustomClassHolder {
  explicit RouterState(RouterCall c) : call(std::move(c)) {}
  RouterCall call;
  at::Tensor bias;  // of the selection
  at::Tensor experts, sent, sums;
};

at::Tensor logits_of(const at::Tensor& x, const at::Tensor& weight, const RouterCall& call) {
  if (call.jitter.size == 0 && nn::gpu::takes(x) && x.scalar_type() == weight.scalar_type() &&
      x.is_contiguous() && weight.is_contiguous()) {
    at::Tensor logits = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
    nn::gpu::multiply_into(logits, x, false, weight, true, false);
    return logits;
  }
  const at::Tensor in = router_steps(x, call).input(x, call);
  return at::mm(in, weight.to(in.scalar_type()).t()).to(at::kFloat);
}

// Returns whether the logits and their gradients are products of 16-bit matrices on a GPU.
bool multiplies_halves(const at::Tensor& x, const at::Tensor& weight, const RouterCall& call) {
  return call.jitter.size == 0 && nn::gpu::takes(x) && x.scalar_type() == at::kBFloat16 &&
         weight.scalar_type() == at::kBFloat16 && x.is_contiguous() && weight.is_contiguous();
}

// Returns x [n, m] as two bf16 matrices side by side, [n, 2m], whose sum is x to 16 bits.
at::Tensor halves_of(const at::Tensor& x) {
  const at::Tensor high = x.to(at::kBFloat16);
  return at::cat({high, (x - high).to(at::kBFloat16)}, 1);
}

// Pairs by row and expert.
struct Counts {
  at::Tensor rows;    // of whole rows, int64 [rows, count]
  at::Tensor before;  // in the chunks before each one of this rank, int64 [rows, chunks, count]
};
Counts count_pairs(const at::Tensor& experts, const RouterCall& call) {
  const at::Tensor own = router_steps(experts, call).count(experts, call);
  if (call.cp.size() == 1) return {own.sum(1), at::zeros_like(own)};
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), call.cp.size());
  const at::Tensor all = at::empty(sizes, own.options());
  comm::Call exchange;
  exchange.traffic = comm::Traffic::control;
  exchange.label = call.label + " counts";
  call.cp.all_gather(all, own.contiguous(), exchange).wait();
  if (call.cp.simulated()) all.copy_(own);  // simulated ranks have the counts of this one
  Counts result{all.sum(0).sum(1), at::zeros_like(own)};
  const int chunks = call.rows.part.chunks();
  for (int rank = 0; rank < call.cp.size(); ++rank) {
    const SequencePart part{rank, call.cp.size()};
    for (int i = 0; i < chunks; ++i) {
      for (int mine = 0; mine < chunks; ++mine) {
        if (part.chunk(i) >= call.rows.part.chunk(mine)) continue;
        result.before.select(1, mine).add_(all.select(0, rank).select(1, i));
      }
    }
  }
  return result;
}

// Returns {logits, experts, counts of rows, pairs sent to each expert}.
tensor_list selection(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const RouterCall& call) {
  const RouterSteps& steps = router_steps(x, call);
  const at::Tensor logits = logits_of(x, weight, call);
  const at::Tensor experts = steps.choose(logits, bias, call);
  const Counts counts = count_pairs(experts, call);
  const Experts& options = call.experts;
  if (options.capacity > 0) {
    const double mean = static_cast<double>(call.rows.row_tokens * options.per_token) /
                        static_cast<double>(options.count);
    const auto capacity = static_cast<std::int64_t>(std::ceil(options.capacity * mean));
    steps.drop(experts, counts.before, capacity, call);
  }
  // Pairs that this rank sends to each expert, without the dropped ones.
  at::Tensor sent;
  if (options.capacity > 0) {
    const at::Tensor kept = experts.masked_fill(experts.lt(0), kNotRouted);
    sent = steps.count(kept, call).sum(1).sum(0);
  } else {
    sent = call.cp.size() == 1 ? counts.rows.sum(0) : steps.count(experts, call).sum(1).sum(0);
  }
  return {logits, experts, counts.rows, sent};
}

struct Route : torch::autograd::Function<Route> {
  static tensor_list forward(AutogradContext* ctx, const c10::intrusive_ptr<RouterState>& state,
                             const at::Tensor& x, const at::Tensor& weight) {
    const RouterCall& call = state->call;
    const tensor_list chosen = nn::keep_in_selective(
        "router", {x, weight}, [&] { return selection(x, weight, state->bias, call); });
    Weighed weighed = router_steps(x, call).weigh(chosen[0], chosen[1], chosen[2], call);
    state->experts = chosen[1];
    state->sent = chosen[3];
    state->sums = weighed.sums;
    const bool balances = call.experts.balance_loss != 0;
    ctx->save_for_backward({x, weight, chosen[0], chosen[1], balances ? chosen[2] : at::Tensor()});
    // The state has the call only, because backward does not need the results.
    ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<RouterState>(call));
    ctx->set_materialize_grads(false);
    return {weighed.weights, weighed.loss};
  }
  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    nn::refuse_second_derivatives("a router");
    const auto capsule = ctx->saved_data["state"].toCapsule();
    const RouterCall& call = static_cast<RouterState*>(capsule.get())->call;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    if (!grads[0].defined() && !grads[1].defined()) return {{}, {}, {}};
    const RouterSteps& steps = router_steps(x, call);
    const at::Tensor dlogits =
        steps.backward(saved[2], saved[3], saved[4], grads[0], grads[1], call);
    at::Tensor dx, dw;
    if (multiplies_halves(x, weight, call)) {
      const at::Tensor halves = halves_of(dlogits);
      if (ctx->needs_input_grad(0)) {
        dx = at::empty(x.sizes(), x.options());
        nn::gpu::multiply_into(dx, halves, false, at::cat({weight, weight}), false, false);
      }
      if (ctx->needs_input_grad(1)) {
        at::Tensor both = at::empty({halves.size(1), x.size(1)}, dlogits.options());
        nn::gpu::multiply_into(both, halves, true, x, false, false);
        dw = both.view({2, weight.size(0), weight.size(1)}).sum(0).to(weight.scalar_type());
      }
      return {at::Tensor(), dx, dw};
    }
    const at::Tensor wide = dlogits.to(at::kFloat);
    if (ctx->needs_input_grad(0)) {
      dx = at::mm(wide, weight.to(at::kFloat));
      if (call.jitter.size != 0) {
        // The input step, applied to ones, returns the factors.
        dx.mul_(steps.input(at::ones_like(x, x.options().dtype(at::kFloat)), call));
      }
      dx = dx.to(x.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor in =
          call.jitter.size == 0 ? x.to(at::kFloat) : steps.input(x, call).to(at::kFloat);
      dw = at::mm(wide.t(), in).to(weight.scalar_type());
    }
    return {at::Tensor(), dx, dw};
  }
};

}  // namespace

const RouterSteps& router_steps(const at::Tensor& like, const RouterCall& call) {
  if (like.is_cpu()) return kRouterLoops;
  const bool fits = call.experts.count <= static_cast<std::int64_t>(kernels::cuda::kMaxExperts);
  return fits && gpu::takes(like) ? kRouterKernels : kRouterOperations;
}

Routed route(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
             const RouterCall& call) {
  auto state = c10::make_intrusive<RouterState>(call);
  state->bias = bias;
  const tensor_list results = Route::apply(state, x, weight);
  return {results[0], state->experts, state->sent, results[1], state->sums};
}

Chosen choose_experts(const at::Tensor& logits, const at::Tensor& bias, const Experts& options) {
  RouterCall call;
  call.experts = options;
  call.rows.rows = 1;
  call.rows.tokens = call.rows.row_tokens = logits.size(0);
  const RouterSteps& steps = router_steps(logits, call);
  const at::Tensor experts = steps.choose(logits, bias, call);
  return {experts, steps.weigh(logits, experts, {}, call).weights};
}

}  // namespace tessera::experts
