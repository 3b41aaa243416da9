#include "tessera/experts/apply.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "tessera/experts/dispatch.h"
#include "tessera/experts/exchange.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::experts {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct ApplyState : torch::CustomClassHolder {
  ApplyState(ExpertsCall c, at::Tensor e) : call(std::move(c)), experts(std::move(e)) {}
  ExpertsCall call;
  at::Tensor experts;  // released by forward
};

// Returns the token of each pair that is sent, by row.
at::Tensor tokens_of_pairs(const at::Tensor& order, std::int64_t k) {
  return order.floor_divide(k);
}

// Writes rows[i] to row source[i] of the result, for a permutation.
at::Tensor unsort(const at::Tensor& rows, const at::Tensor& source) {
  at::Tensor out = at::empty(rows.sizes(), rows.options());
  return out.index_copy_(0, source.to(at::kLong), rows);
}

// Parameters as a list: fc and proj2 of each expert, or with biases fc, its bias, proj2, its bias.
std::vector<ExpertParams> params_of(at::TensorList list, bool biases) {
  std::vector<ExpertParams> params;
  if (biases) {
    for (std::size_t i = 0; i < list.size(); i += 4) {
      params.push_back({list[i], list[i + 1], list[i + 2], list[i + 3]});
    }
  } else {
    for (std::size_t i = 0; i < list.size(); i += 2) {
      params.push_back({list[i], {}, list[i + 1], {}});
    }
  }
  return params;
}

// Numbers of the saved tensors.
enum Saved : std::size_t { kSlots, kRows, kWeights, kCounts, kProducts, kParams };

// Returns the sorted rows of a backward or, with the slots, of a forward.
SortedRows sorted_rows(const ApplyState& state, const tensor_list& saved) {
  SortedRows rows;
  rows.x = saved[kRows];
  if (state.call.ep.size() == 1) {
    const at::Tensor& slots = saved[kSlots];
    const at::Tensor order = order_of(slots, saved[kProducts].size(0));
    rows.source = tokens_of_pairs(order, slots.size(1));
    rows.weights = at::index_select(saved[kWeights].reshape({-1}), 0, order);
    rows.counts = saved[kCounts];
    return rows;
  }
  const Exchange exchange(state.call.ep, saved[kCounts]);
  rows.source = exchange.source().to(rows.x.device());
  rows.weights = at::index_select(saved[kWeights], 0, rows.source);
  return rows;
}

struct ApplyExperts : torch::autograd::Function<ApplyExperts> {
  // Returns {y, slots, rows, weights, counts, products}.
  static tensor_list run(const ApplyState& state, const at::Tensor& x, const at::Tensor& weights,
                         const std::vector<ExpertParams>& params) {
    const ExpertsCall& call = state.call;
    const SortedPairs pairs = sort_pairs(state.experts, call.count);
    SortedRows rows;
    const at::Tensor tokens = tokens_of_pairs(pairs.order, state.experts.size(1));
    const at::Tensor own = at::index_select(weights.reshape({-1}), 0, pairs.order);
    if (call.ep.size() == 1) {
      rows = {x, tokens, own, pairs.counts};
      ExpertOutputs outputs = expert_outputs(rows, params, call.kind);
      return {combine(outputs.out, pairs.slots),
              pairs.slots,
              {},
              {},
              pairs.counts,
              std::move(outputs.h)};
    }
    const Exchange exchange(call.ep, pairs.counts, call.label);
    rows.x = exchange.there(rows_of(x, tokens), call.label + " rows");
    const at::Tensor received = exchange.there(own, call.label + " weights");
    rows.source = exchange.source().to(x.device());
    rows.weights = at::index_select(received, 0, rows.source);
    rows.counts = exchange.rows_of_experts(static_cast<std::int64_t>(params.size())).to(x.device());
    ExpertOutputs outputs = expert_outputs(rows, params, call.kind);
    const at::Tensor back =
        exchange.back(unsort(outputs.out, rows.source), call.label + " results");
    return {combine(back, pairs.slots), pairs.slots,         rows.x, received,
            exchange.counts(),          std::move(outputs.h)};
  }

  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<ApplyState>& state,
                            const at::Tensor& x, const at::Tensor& weights, at::TensorList list) {
    const std::vector<ExpertParams> params = params_of(list, state->call.biases);
    tensor_list kept = nn::keep_in_selective("experts", {x, weights},
                                             [&] { return run(*state, x, weights, params); });
    state->experts = at::Tensor();
    if (!kept[2].defined()) kept[2] = x;
    if (!kept[3].defined()) kept[3] = weights;
    tensor_list saved(kept.begin() + 1, kept.end());
    saved.insert(saved.end(), list.begin(), list.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    ctx->set_materialize_grads(false);
    return kept[0];
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    nn::refuse_second_derivatives("experts");
    const auto capsule = ctx->saved_data["state"].toCapsule();
    const auto& state = static_cast<const ApplyState&>(*capsule);
    const ExpertsCall& call = state.call;
    tensor_list saved = ctx->get_saved_variables();
    const tensor_list list(saved.begin() + kParams, saved.end());
    const std::vector<ExpertParams> params = params_of(list, call.biases);
    tensor_list result(3 + list.size());
    if (!grads[0].defined()) return result;
    const at::Tensor dy = grads[0].contiguous(), slots = saved[kSlots];
    SortedRows rows = sorted_rows(state, saved);
    ExpertGradients gradients;
    at::Tensor dx, dweights;
    if (call.ep.size() == 1) {
      gradients = expert_gradients(dy, saved[kProducts], rows, params, call.kind);
      dx = gradients.dx;
      dweights = gradients.dweights;
    } else {
      const Exchange exchange(call.ep, saved[kCounts]);
      rows.counts =
          exchange.rows_of_experts(static_cast<std::int64_t>(params.size())).to(dy.device());
      const at::Tensor order = order_of(slots, exchange.sent());
      const at::Tensor d = exchange.there(rows_of(dy, tokens_of_pairs(order, slots.size(1))),
                                          call.label + " backward");
      gradients = expert_gradients(d, saved[kProducts], rows, params, call.kind);
      dx = exchange.back(unsort(gradients.dx, rows.source), call.label + " rows backward");
      dweights =
          exchange.back(unsort(gradients.dweights, rows.source), call.label + " weights backward");
    }
    if (ctx->needs_input_grad(0)) result[1] = combine(dx, slots);
    if (ctx->needs_input_grad(1)) result[2] = values_of_pairs(dweights, slots);
    for (std::size_t i = 0; i < list.size(); ++i) {
      result[3 + i] = gradients.params[call.biases ? i : 2 * i];
    }
    return result;
  }
};

}  // namespace

at::Tensor apply_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& experts,
                         const std::vector<ExpertParams>& params, const ExpertsCall& call) {
  tensor_list list;
  for (const ExpertParams& each : params) {
    if (call.biases) {
      list.insert(list.end(), {each.fc, each.fc_bias, each.proj2, each.proj2_bias});
    } else {
      list.insert(list.end(), {each.fc, each.proj2});
    }
  }
  return ApplyExperts::apply(c10::make_intrusive<ApplyState>(call, experts), x, weights,
                             at::TensorList(list));
}

}  // namespace tessera::experts
