// Operations of a layer with experts.

#include <algorithm>
#include <cmath>

#include "tessera/planner/program_builder.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

// Kernels of the router besides its product: scores, selection, and the sort of rows by expert.
constexpr double kRouterLaunches = 12, kFusedRouterLaunches = 4;

}  // namespace

ExpertRange experts_on_rank(std::int64_t experts, int ep, int rank) {
  const auto range = [&](std::int64_t r) {
    return ExpertRange{r * experts / ep, (r + 1) * experts / ep};
  };
  if (rank >= 0) return range(rank);
  ExpertRange most = range(0);
  for (int r = 1; r < ep; ++r) {
    if (range(r).count() > most.count()) most = range(r);
  }
  return most;
}

MlpSizes mlp_sizes(std::int64_t width, double rows, bool gated, int tp) {
  MlpSizes sizes;
  sizes.width = real(width) / tp;
  sizes.up = (gated ? 2 : 1) * sizes.width;
  sizes.wide = rows * real(width) / tp;
  sizes.columns = rows * real(width / tp);
  return sizes;
}

double routed_rows(const ProgramInput& in, double rows, std::int64_t own) {
  const Experts& experts = in.model.experts;
  if (!experts.any()) return 0;
  const double most = experts.capacity > 0 ? experts.capacity : in.imbalance;
  const double load = std::min(in.imbalance, most);  // RunConfig::expert_load()
  return std::floor(rows * real(experts.per_token) * real(own) * in.axes.size(Axis::ep) /
                    real(experts.count) * load);
}

bool ProgramBuilder::has_experts() const {
  if (!m.experts.any() || program_.part == ProgramPart::dense_layer) return false;
  return program_.part != ProgramPart::first_layer || m.experts.dense_layers == 0;
}

// [Note: operations of experts] With N rows of C values, k of E experts for each row, and ep ranks:
//   z → router, fp32 → logits [N,E], weights [N,k] → rows sorted by expert [N·k,C] → all-to-all
//   → M rows of this rank's experts → fc → activation · weight → proj2 → all-to-all back
//   → sum over the k results of a row, + shared experts
// M is N·k times the part of the experts that this rank has, times ep, if all ranks route evenly;
// the busiest rank has `imbalance` times as many, up to the capacity. The weight multiplies inside
// the expert, so that backward needs no results of experts. Tessera keeps z, the logits, weights,
// expert numbers, sorted order, counts of the balance loss and the results of fc, and with ep > 1
// the rows and weights that came from other ranks instead of its weights; backward sorts z again
// and recomputes the activation. Megatron-LM and PyTorch keep the rows and the activation too.
//
// Each rank sends N·k · (ep-1)/ep rows to the experts' ranks with a weight in fp32 each, and as
// many results back, in forward and again with gradients in backward. Messages that announce the
// numbers of rows are not counted. Tensor-parallel ranks route the same rows: they sum the results
// of experts and shared experts together, and the gradient of the router.
TensorId ProgramBuilder::experts(TensorId z) {
  const std::int64_t width = m.experts.width, gates = m.swiglu ? 2 : 1;
  route(z);
  const TensorId up = grouped("experts' fc", m.hidden, gates * width, false, dispatch(z));
  const TensorId out = grouped("experts' proj2", width, m.hidden, true, weighted_activation(up));
  return combine(out, m.experts.shared_width > 0 ? shared_experts(z) : out);
}

// The router multiplies in fp32 in Tessera.
TensorId ProgramBuilder::route(TensorId z) {
  const double count = real(m.experts.count), selected = rows * real(m.experts.per_token);
  const TensorId logits = tensor(rows * count, 4);
  Operation& op = add(OpKind::linear, "router", {z}, {logits});
  add_params(op, {"experts.router.weight", m.experts.count, m.hidden}, nullptr);
  const int element = ledger_ ? 4 : 0;
  op.forward.products = {{rows, count, h, 1, 1, element}};
  op.backward_input.products = {{rows, h, count, 1, 1, element}};
  op.backward_weight.products = {{count, h, rows, 1, 1, element}};
  op.forward.bytes = 3 * rows * count * 4 + 4 * selected * 4;
  op.forward.launches = in.fused ? kFusedRouterLaunches : kRouterLaunches;
  op.backward_input.bytes = 3 * rows * count * 4;
  op.backward_input.launches = in.fused ? 2 : 6;
  op.backward_weight.bytes = share(op) * accumulate_, op.backward_weight.launches = 1;
  cut(op, false, Sent::layers, z, logits);
  const int always = kUnlessAgain | kSelective;
  keep(op, z, kUnlessAgain | (cuts_sequence_ ? kSelective : 0));
  keep(op, logits, always);
  if (in.axes.size(Axis::ep) == 1) keep(op, tensor(selected, 4), kUnlessAgain);  // weights
  keep(op, tensor(selected, 4, 2), always);  // expert numbers, sorted order
  if (m.experts.balance_loss > 0) {
    keep(op, tensor(real(in.batch) * count, 4), always);  // rows of each expert
  }
  return logits;
}

// Adds the all-to-alls of rows over the expert-parallel ranks, in forward and in backward.
void ProgramBuilder::exchange_rows(Operation& op, Sent sent, TensorId of) const {
  if (in.axes.size(Axis::ep) == 1) return;
  const double sent_rows = rows * real(m.experts.per_token) *
                           (m.experts.capacity > 0 ? std::min(1.0, m.experts.capacity) : 1);
  for (const bool backward : {false, true}) {
    op.sends.push_back(
        {Axis::ep, Collective::all_to_all, sent, backward, of, sent_rows * h, in.element, 1});
    if (sent != Sent::to_experts) continue;
    op.sends.push_back(
        {Axis::ep, Collective::all_to_all, Sent::expert_weights, backward, of, sent_rows, 4, 1});
  }
}

// Sorts the rows by expert, sends them, and puts those of each expert together.
TensorId ProgramBuilder::dispatch(TensorId z) {
  const double selected = rows * real(m.experts.per_token);
  const TensorId received = tensor(routed_ * h, e);
  Operation& op = add(OpKind::exchange, "dispatch", {z}, {received});
  const bool regroups = in.axes.size(Axis::ep) > 1 && own_experts_.count() > 1;
  const double regrouped = regroups ? 2 * routed_ * h * e : 0;
  op.forward.bytes = (rows + selected) * h * e + regrouped;
  op.forward.launches = regroups ? 2 : 1;
  op.backward_input = op.forward;
  exchange_rows(op, Sent::to_experts, z);
  if (ledger_ && !in.fused) {
    const double up = (m.swiglu ? 2 : 1) * expert_.columns * e;
    op.frees = up + (in.axes.size(Axis::ep) > 1 ? routed_ * (h * e + 4) : 0);
    op.frees_kept = kUnlessAgain | kSelective;
  }
  if (in.axes.size(Axis::ep) > 1 || !ledger_) keep(op, received, kUnlessAgain | kSelective);
  if (in.axes.size(Axis::ep) > 1)
    keep(op, tensor(routed_, 4), kUnlessAgain | kSelective);  // their weights
  return received;
}

// Product of the rows of each expert with its matrix.
TensorId ProgramBuilder::grouped(const char* name, std::int64_t in_width, std::int64_t out_width,
                                 bool row, TensorId x) {
  const double tp = in.axes.size(Axis::tp), count = real(own_experts_.count());
  const double n = real(in_width) / (row ? tp : 1), k = real(out_width) / (row ? 1 : tp);
  const TensorId out = tensor(routed_ * k, e);
  Operation& op = add(OpKind::linear, name, {x}, {out});
  Param weight{row ? "proj2.weight" : "fc.weight", out_width, in_width, row ? 1 : 0};
  Param bias{row ? "proj2.bias" : "fc.bias", out_width, 0, row ? -1 : 0};
  if (!row) {
    const std::int64_t width = m.experts.width;
    for (std::int64_t i = 0; i < out_width / width; ++i) {
      weight.segments.push_back({width, std::min<std::int64_t>(width, in.axes.size(Axis::tp))});
    }
    bias.segments = weight.segments;
  }
  weight.experts = bias.experts = own_experts_.count();
  add_params(op, weight, m.biases.mlp ? &bias : nullptr);
  const double each = count > 0 ? routed_ / count : 0;
  // One kernel for all experts of a GPU, and one for each on a CPU.
  const bool together = in.gpu || !ledger_;
  const double batch = together ? count : 1, times = together ? 1 : count;
  op.forward.products = {{each, k, n, batch, times}};
  op.backward_input.products = {{each, n, k, batch, times}};
  op.backward_weight.products = {{n, k, each, batch, times}};
  if (!in.fused) {
    op.backward_weight.bytes = share(op) * accumulate_, op.backward_weight.launches = 1;
  } else if (in.grad != in.element) {
    op.backward_weight.bytes = share(op) * (e + in.grad), op.backward_weight.launches = 3;
  }
  if (row && !ledger_) keep(op, x, kUnlessAgain);
  if (!row) keep(op, out, kUnlessAgain | kSelective);
  const double columns = expert_.columns, gates = m.swiglu ? 2 : 1;
  if (!ledger_) {
    if (row) op.temporary = e * (routed_ * 2 * h + (gates + 1) * columns + rows * h);
  } else if (!in.fused && row) {
    op.temporary = experts_temporary();
  }
  return out;
}

// [Note: backward of experts] On a CPU, Tessera's experts are one operation of autograd, from the
// rows of z to the sum over their results. Its backward exchanges gradients of the results there
// (ep > 1), computes the gradients of all rows expert by expert, exchanges them back, and sums
// those of each row. What forward kept is freed at the end. Bytes besides it, at the moments that
// can be the peak:
// - in an expert with n of the M rows: gradients of the results (ep > 1) and of the rows, M·C each;
//   those of the expert's results, n·C, and the values of the activation's backward, which are
//   fp32, or later the gradients of its hidden values with the gradients of its matrices;
// - in the exchange back: M·C four times, for the gradients of results and rows, and those of rows
//   in the order of the ranks before and after the exchange;
// - in the sum: the rows, and one for each row of z.
// Gradients of matrices are added up in the engine's buffers, or kept until the end. Shared experts
// are behind these in forward, so that their gradient of z waits.
double ProgramBuilder::experts_temporary() const {
  const double count = real(own_experts_.count());
  if (count == 0) return 0;
  const double gates = m.swiglu ? 2 : 1, width = real(m.experts.width / in.axes.size(Axis::tp));
  const double n = routed_ / count, wide = expert_.columns / count;
  const double all = e * routed_ * h;                            // rows of all experts
  const double sent = e * rows * real(m.experts.per_token) * h;  // on the way back
  const bool apart = in.axes.size(Axis::ep) > 1, copies = e < 4;
  const bool kept = !frozen_ && !in.expert_grads_in_place;
  const double down = kept ? e * h * width : 0, up = gates * down;  // gradients of the matrices
  // fp32 copies of a product's operands and result.
  const auto copied = [&](double elements) { return copies ? 4 * elements : 0; };
  const double gated = m.swiglu ? 4 * e + 4 * (copies ? 8 : 5) : 3 * e + 4 * (copies ? 5 : 2);
  const double product = n * h + wide + h * width;
  const double in_expert =
      e * n * h +
      std::max({gated * wide, e * wide + copied(product),
                e * (gates + 2) * wide + down + copied(product),
                e * gates * wide + down + up + copied(n * h + gates * (wide + h * width))});
  const double numbers = 12 * routed_ + (apart ? 4 * rows * real(m.experts.per_token) : 0);
  const double while_computing = (apart ? 2 : 1) * all + (count - 1) * (down + up) + in_expert;
  const double while_returning = apart ? 3 * all + sent + count * (down + up) : 0;
  const double while_summing = (apart ? all + sent : all) + e * rows * h + count * (down + up);
  const double shared = m.experts.shared_width > 0 ? e * rows * h : 0;
  return shared + numbers + std::max({while_computing, while_returning, while_summing});
}

// The function of the gate or of the only product, times the row's weight.
TensorId ProgramBuilder::weighted_activation(TensorId before) {
  const TensorId out = tensor(expert_.wide, e);
  Operation& op = add(OpKind::activation, "expert activation", {before}, {out});
  const double columns = expert_.columns, gates = m.swiglu ? 2 : 1;
  op.forward.bytes = routed_ * (expert_.up + expert_.width) * e, op.forward.launches = 1;
  op.backward_input.bytes = routed_ * (2 * expert_.up + 2 * expert_.width) * e;
  op.backward_input.launches = in.fused ? 2 : 3;
  op.recomputed = true;
  if (in.fused) {
    // Gradients of the result and of the rows; the sorted rows; the recomputed activation, its
    // gradient and that of its input.
    op.temporary = e * (rows * h + 2 * routed_ * h + (2 + gates) * columns);
  }
  if (in.fused) op.frees = gates * columns * e, op.frees_kept = kUnlessAgain | kSelective;
  return out;
}

// Sends the results back and sums those of each row, with those of shared experts.
TensorId ProgramBuilder::combine(TensorId results, TensorId shared) {
  const double selected = rows * real(m.experts.per_token);
  const TensorId out = tensor(own * h, e);
  Operation& op = add(OpKind::exchange, "combine", {results, shared}, {out});
  const bool regroups = in.axes.size(Axis::ep) > 1 && own_experts_.count() > 1;
  const double summed = shared == results ? 0 : rows * h * e;
  op.forward.bytes = (rows + selected) * h * e + (regroups ? 2 * routed_ * h * e : 0) + summed;
  op.forward.launches = regroups ? 2 : 1;
  op.backward_input = op.forward;
  exchange_rows(op, Sent::from_experts, results);
  cut(op, true, Sent::layers, results, out);
  keep_held(op, out, kSelective);
  // Before the sum over the tensor-parallel ranks.
  if (in.axes.size(Axis::tp) > 1 && !in.fused && !cuts_sequence_) {
    keep_held(op, tensor(rows * h, e), kSelective);
  }
  return out;
}

TensorId ProgramBuilder::shared_experts(TensorId z) {
  const TensorId out =
      mlp("experts.shared.fc.weight", "experts.shared.fc.bias", "experts.shared.proj2.weight",
          "experts.shared.proj2.bias", m.experts.shared_width, z, /*of_experts=*/true);
  if (!m.experts.shared_gate) return out;
  const TensorId gated = tensor(own * h, e);
  Operation& op = add(OpKind::linear, "shared gate", {out, z}, {gated});
  add_params(op, {"experts.shared_gate.weight", 1, m.hidden}, nullptr);
  op.forward.products = {{rows, 1, h}};
  op.backward_input.products = {{rows, h, 1}};
  op.backward_weight.products = {{1, h, rows}};
  op.forward.bytes = 3 * rows * h * e, op.forward.launches = 1;
  op.backward_input.bytes = 4 * rows * h * e, op.backward_input.launches = 2;
  op.recomputed = true;
  keep(op, out, kUnlessAgain);
  keep(op, tensor(rows, e), kUnlessAgain);
  return gated;
}

}  // namespace tessera::planner
