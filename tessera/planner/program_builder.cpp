// Builders of the operations in a program.

#include "tessera/planner/program_builder.h"

#include <algorithm>
#include <cmath>

#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

// Bytes of random-generator state that a recomputed layer keeps: on a CPU, and with fused
// operations.
constexpr double kRandomState = 5056, kFusedRandomState = 16;
// Bytes to which memory blocks are rounded: a cache line, or the GPU allocator's granularity.
constexpr double kLine = 64, kGpuLine = 512;

// Workspace of a product, equal to the one in kernels/cuda/gemm.h.
constexpr double kWorkspace = 32.0 * (1 << 20);

// [Note: launches] Number of kernels in an eager layer that copy between layouts. They move few
// bytes but cost one launch each.
constexpr double kCopies = 8;
}  // namespace

ProgramBuilder::ProgramBuilder(const ProgramInput& input, ProgramPart part)
    : in(input),
      m(input.model),
      e(input.element),
      ledger_(input.software == Software::tessera),
      frozen_(m.lora.any()),
      cuts_sequence_(input.sequence_ranks > 1),
      adds_residual_(input.fused && input.axes.size(Axis::tp) == 1 && !input.model.post_norms),
      tokens(real(input.tokens > 0 ? input.tokens : input.seq)),
      rows(real(input.batch) * tokens),
      h(real(m.hidden)),
      heads(real(m.heads) / in.axes.size(Axis::tp)),
      kv(std::max(1.0, real(m.kv_heads) / in.axes.size(Axis::tp))),
      vocab(real((m.vocab + in.axes.size(Axis::tp) - 1) / in.axes.size(Axis::tp))),
      context(heads * real(m.head_dim())),
      qkv_width((heads + 2 * kv) * real(m.head_dim())),
      exchanged_width((heads + 2 * std::max(kv, real(input.axes.size(Axis::cp)))) *
                      real(m.head_dim())),
      own(ledger_ ? std::floor(rows / in.sequence_ranks) : rows / in.sequence_ranks),
      whole(rows * h / in.sequence_ranks),
      accumulate_(e + in.accumulate_passes * in.grad),
      own_experts_(experts_on_rank(m.experts.count, in.axes.size(Axis::ep), in.ep_rank)),
      routed_(routed_rows(in, rows, own_experts_.count())),
      expert_(mlp_sizes(m.experts.width, routed_, m.swiglu, in.axes.size(Axis::tp))) {
  program_.part = part;
  program_.axes = in.axes;
  program_.first_expert = own_experts_.first;
  program_.tensors.reserve(32);
  program_.operations.reserve(frozen_ ? 48 : 16);
  if (frozen_) adapters_ = adapters_of(m);
  if (!in.fused) return;
  program_.workspace = kWorkspace;
  program_.batches = 2;  // The original, and the copy that a CUDA graph reads.
  program_.grads_in_place = true;
}

TensorId ProgramBuilder::tensor(double elements, double size, int alike) {
  const double line = in.fused ? kGpuLine : kLine;
  const double held = std::ceil(std::floor(elements) * size / line) * line;
  program_.tensors.push_back({alike * elements * size, static_cast<std::int64_t>(alike * held)});
  return static_cast<TensorId>(program_.tensors.size() - 1);
}

// Walks over the list once: a tensor has a gradient if its operation is trained or reads a tensor
// that has one.
Program ProgramBuilder::take() {
  std::uint64_t with = program_.with_gradient;
  for (Operation& op : program_.operations) {
    bool reaches = op.trained;
    for (const TensorId tensor : op.reads) reaches = reaches || (with >> tensor & 1) != 0;
    if (!op.reads.empty()) op.gradient_goes_on = (with >> op.reads.front() & 1) != 0;
    for (const TensorId tensor : op.writes) with |= std::uint64_t{reaches} << tensor;
  }
  program_.with_gradient = with;
  return std::move(program_);
}

// Adds the collectives of a tensor-parallel operation. Its input or output has b·s·h elements and
// is replicated on all ranks unless the sequence is sharded: [Note: tensor-parallel traffic]. The
// time of a reduction includes that of the gather that goes with it.
void ProgramBuilder::cut(Operation& op, bool row, Sent sent, TensorId x, TensorId out) const {
  if (in.axes.size(Axis::tp) == 1) return;
  const double elements = rows * h;
  const Collective sum = cuts_sequence_ ? Collective::reduce_scatter : Collective::all_reduce;
  const TensorId of = row ? out : x;
  op.sends.push_back({Axis::tp, sum, sent, !row, of, elements, in.element, 1});
  if (!cuts_sequence_) return;
  op.sends.push_back({Axis::tp, Collective::all_gather, sent, row, of, elements, in.element, 0});
}

// With sequence parallelism, backward of a fused column-parallel linear gathers its input again: it
// keeps a shard only.
void ProgramBuilder::gather_again(Operation& op, TensorId out) const {
  if (!in.fused || !cuts_sequence_) return;
  op.sends.push_back(
      {Axis::tp, Collective::all_gather, Sent::layers, true, out, rows * h, in.element, 0.5});
}

// Sums the gradients of parameters that several ranks hold, once per micro-batch.
void ProgramBuilder::sum_gradients(const char* name, Sent sent, double elements, double calls) {
  if (in.axes.size(Axis::tp) == 1 || elements <= 0) return;
  Operation& op = add(OpKind::collective, name, {}, {});
  op.sends.push_back(
      {Axis::tp, Collective::all_reduce, sent, true, 0, elements, in.element, calls});
}

// Returns the bytes of the gradients that the product of x with a weight computes from dy. With
// 16-bit values they include the fp32 copies of a CPU, which multiplies only fp32.
double ProgramBuilder::product_temporary(double x, double dy, double weight) const {
  return e * (x + (frozen_ ? 0 : weight)) + (e < 4 ? 4 * (dy + x + weight) : 0);
}

// Adds the input of a layer, from which recomputation starts.
TensorId ProgramBuilder::checkpoint() {
  const TensorId x = tensor(own * h, e);
  const bool first = program_.part == ProgramPart::first_layer && frozen_;
  program_.with_gradient = first ? 0 : std::uint64_t{1} << x;
  Operation& op = add(OpKind::checkpoint, "checkpoint", {x}, {});
  op.keeps.push_back({x, kSelective | kFull});
  keep_held(op, tensor(in.fused ? kFusedRandomState : kRandomState, 1), kSelective | kFull);
  if (!in.fused) op.copies = e * own * h, op.copied_when = kSelective | kFull;
  return x;
}

// LayerNorm or RMSNorm. With sequence parallelism its input is sharded, but the kept result is
// gathered on every rank: selective recomputation keeps it too, which avoids another gather.
TensorId ProgramBuilder::norm(const char* weight, const char* bias, TensorId x) {
  const TensorId y = tensor((ledger_ ? rows : own) * h, e);
  Operation& op = add(OpKind::norm, "norm", {x}, {y});
  const Param shift{bias, m.hidden};
  add_params(op, {weight, m.hidden}, m.biases.norm ? &shift : nullptr);
  op.forward.bytes = 2 * whole * e, op.forward.launches = 1;
  op.backward_input.bytes = 5 * whole * e, op.backward_input.launches = 2;
  if (!in.fused) op.backward_weight.bytes = share(op) * accumulate_;
  if (in.fused && cuts_sequence_) op.backward_input.bytes += 2 * whole * e;  // its result again
  op.recomputed = true;
  keep(op, x, kIfBackward);
  keep_held(op, tensor(own, 4, m.biases.norm ? 2 : 1), kIfBackward);
  if (m.norm_plus_one) keep_held(op, tensor(h, 4), kIfBackward);  // 1 + weight
  return y;
}

// A norm behind attention, which frees what it keeps before the backward of attention.
TensorId ProgramBuilder::norm_behind(const char* weight, const char* bias, TensorId x) {
  const TensorId y = norm(weight, bias, x);
  if (!ledger_ || in.fused || frozen_) return y;
  Operation& op = program_.operations.back();
  op.frees = own * (h * e + (m.biases.norm ? 8 : 4)), op.frees_kept = kUnlessAgain;
  return y;
}

// `outputs`: number of elements of its output.
// [Note: products in fp8] Each input of a product is read and written again in fp8: the input of
// the linear, its weight and the gradient of its result, which backward also writes transposed, and
// the first two once more, transposed. The largest magnitudes take a pass over the weight, and over
// other tensors that no kernel of Tessera's made: the result of attention, gathered sequences, and
// the rotated gradients of queries and keys.
void ProgramBuilder::products_in_fp8(Operation& op, const Linear& spec) const {
  const double n = spec.in_on_rank, k = spec.out_on_rank;
  for (Kernels* kernels : {&op.forward, &op.backward_input, &op.backward_weight}) {
    auto& products = kernels->products;
    for (std::size_t i = 0; i < products.count; ++i) products.items[i].element = 1;
  }
  const bool qkv = spec.name == "qkv", of_attention = spec.name == "proj";
  const bool searched = of_attention || (cuts_sequence_ && !spec.row);
  const bool searched_gradient = (qkv && m.rotary()) || (cuts_sequence_ && spec.row);
  op.forward.bytes += rows * n * (e + 1 + (searched ? e : 0)) + n * k * (e + e + 1);
  op.forward.launches += 6;
  op.backward_input.bytes += rows * k * (e + 2 + (searched_gradient ? e : 0)) + n * k * (e + 1);
  op.backward_input.launches += 3;
  op.backward_weight.bytes += rows * n * (e + 1);
  op.backward_weight.launches += 1;
}

TensorId ProgramBuilder::linear(const Linear& spec, TensorId x, double outputs) {
  const TensorId out = tensor(outputs, e);
  Operation& op = add(OpKind::linear, spec.weight, {x}, {out});
  const double n = spec.in_on_rank, k = spec.out_on_rank;
  const Param bias{spec.bias, spec.out, 0, spec.row ? -1 : 0, spec.segments};
  add_params(op, {spec.weight, spec.out, spec.in, spec.row ? 1 : 0, spec.segments},
             spec.has_bias ? &bias : nullptr);
  op.forward.products = {{rows, k, n}};
  op.backward_input.products = {{rows, n, k}};
  op.backward_weight.products = {{n, k, rows}};
  if (in.fp8 && !spec.of_experts) products_in_fp8(op, spec);
  if (in.fused) {
    // Gradients are copied if they are stored in another type than they are computed in.
    if (in.grad != in.element) {
      op.backward_weight.bytes = n * k * (e + in.grad), op.backward_weight.launches = 3;
    }
    // Sums over the rows for bias gradients that no product computes in its epilogue.
    if (m.biases.any_linear() && spec.name != "fc") {
      op.backward_weight.bytes += rows * k * e, op.backward_weight.launches += 2;
    }
  } else {
    op.backward_weight.bytes = share(op) * accumulate_, op.backward_weight.launches = 1;
  }
  op.temporary = spec.temporary, op.frees = spec.frees, op.frees_kept = kUnlessAgain;
  if (spec.of_experts) {
    op.recomputed = true;
    if (!in.fused) keep(op, x, kIfTrained);
    return out;
  }
  cut(op, spec.row, Sent::layers, x, out);
  const bool gathered = cuts_sequence_ && !spec.row;
  if (!in.fused) keep(op, x, kIfTrained | (gathered ? kSelective : 0));
  const bool adapted = std::any_of(adapters_.begin(), adapters_.end(),
                                   [&](const Adapter& a) { return a.linear == spec.name; });
  if (!spec.row && (!frozen_ || adapted)) gather_again(op, out);
  // The result of the last product with its residual is the next layer's input.
  if (!adds_residual_ || spec.name != "proj2") keep_held(op, out, kSelective);
  // Attention reads the output of rotary instead of qkv.
  if (spec.name == "qkv" && m.rotary()) {
    op.copies = e * outputs, op.copied_when = kSelective, op.copies_replace = !in.fused;
  } else if (spec.row && !in.fused) {
    op.copies = e * outputs, op.copied_when = kSelective, op.copies_replace = true;
  }
  adapters(spec, x, out);
  return out;
}

// [Note: adapters in a program] All other parameters are frozen and have no gradient, so backward
// stops at the first adapter. Next to a linear, A computes `low` from its input, and B adds its
// product with `low` to the output.
void ProgramBuilder::adapters(const Linear& spec, TensorId x, TensorId out) {
  const double r = real(m.lora.rank);
  double ranks = 0, summed = 0;
  for (const Adapter& adapter : adapters_) ranks += adapter.linear == spec.name ? r : 0;
  if (ranks == 0) return;
  const TensorId low = tensor(rows * ranks, e);
  const TensorId unsummed = tensor(rows * h, e);  // before the sum over the ranks
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    const Adapter& adapter = adapters_[i];
    if (adapter.linear != spec.name) continue;
    const bool row = adapter.cut_inputs;
    Param a{"A", m.lora.rank, adapter.in, row ? 1 : -1};
    Param b{"B", adapter.out, m.lora.rank, row ? -1 : 0};
    for (const ParamSpec::Segment& segment : adapter.segments) {
      b.segments.push_back(segment);
      if (segment.parts < in.axes.size(Axis::tp)) shared_adapters_ += r * real(segment.length);
    }
    summed += r * real(row ? adapter.out : adapter.in);
    const double n = a.share_on_rank(in.axes.size(Axis::tp)) / r,
                 k = b.share_on_rank(in.axes.size(Axis::tp)) / r;
    const auto thin = [&](const char* name, const Param& param, TensorId from, TensorId to) {
      Operation& op = add(OpKind::adapter, name, {from}, {to});
      op.params.push_back(param);
      op.trained = true;
      op.adapter = static_cast<int>(i);
      op.backward_weight.bytes = param.share_on_rank(in.axes.size(Axis::tp)) * accumulate_;
      op.backward_weight.launches = 1;
      if (!in.fused || from == low) keep(op, from, kIfTrained);
      return &op;
    };
    Operation* op = thin("A", a, x, low);
    op->forward.products = {{rows, r, n}};
    op->backward_input.products = {{rows, n, r}};
    op->backward_input.bytes = 3 * rows * n * e, op->backward_input.launches = 1;
    op->backward_weight.products = {{r, n, rows}};
    keep_held(*op, low, kSelective);
    if (spec.row && in.axes.size(Axis::tp) > 1 && !in.fused) keep_held(*op, unsummed, kSelective);
    op = thin("B", b, low, out);
    op->forward.products = {{rows, k, r}};
    op->forward.bytes = 3 * rows * k * e, op->forward.launches = 1;
    op->backward_input.products = {{rows, r, k}};
    op->backward_weight.products = {{k, r, rows}};
  }
  sum_gradients("adapters", Sent::adapters, summed, 1);
}

// RMSNorm over each head of queries and keys. It copies them and appends the values.
TensorId ProgramBuilder::head_norms(TensorId qkv) {
  const double heads_normed = heads + kv;
  const double values = rows * heads_normed * real(m.head_dim()), all = rows * qkv_width;
  const TensorId y = tensor(all, e);
  Operation& op = add(OpKind::norm, "qk_norm", {qkv}, {y});
  add_params(op, {"q_norm.weight", m.head_dim()}, nullptr);
  op.params.push_back({"k_norm.weight", m.head_dim()});
  op.forward.bytes = (4 * values + 2 * all) * e, op.forward.launches = 5;
  op.backward_input.bytes = (5 * values + 2 * all) * e, op.backward_input.launches = 7;
  op.recomputed = true;
  keep(op, tensor(values, e), kIfBackward);
  keep_held(op, tensor(rows * heads_normed, 4), kIfBackward);
  return y;
}

// Splits qkv into queries, keys and values, applies rotary positions and repeats keys and values
// for every query head. Fused operations work in place.
TensorId ProgramBuilder::split_heads(TensorId qkv) {
  if (in.fused && !m.rotary()) return qkv;
  const bool repeats =
      ledger_ && in.axes.size(Axis::cp) == 1;  // ring never repeats them, ulysses does later
  const TensorId split = in.fused ? qkv : tensor(rows * (repeats ? 3 * context : qkv_width), e);
  Operation& op = add(OpKind::rotary, "heads", {qkv}, {split});
  if (in.fused) {
    op.forward.bytes = 2 * rows * real((m.heads + m.kv_heads) * m.head_dim()) * e;
    op.forward.launches = 1;
    op.backward_input = op.forward;
  } else {
    op.forward.bytes = 2 * rows * context * e, op.forward.launches = kCopies;
    op.backward_input.bytes = rows * (qkv_width + 2 * context) * e;
    op.backward_input.launches = kCopies;
  }
  return split;
}

// GELU or ReLU of one matrix, or SwiGLU of two.
TensorId ProgramBuilder::activation(TensorId before, const MlpSizes& mlp) {
  const double ffn = mlp.width, up = mlp.up, wide = mlp.wide, wide_columns = mlp.columns;
  const TensorId out = tensor(wide, e);
  Operation& op = add(OpKind::activation, "activation", {before}, {out});
  op.forward.bytes = rows * (up + ffn) * e, op.forward.launches = 1;
  op.backward_input.bytes = (in.fused ? 2 * (up + ffn) : 3 * up + ffn) * rows * e;
  op.backward_input.launches = in.fused ? 2 : 3;
  op.recomputed = true;
  const bool relu = !m.swiglu && m.activation == Activation::relu;
  const bool fused =
      in.fused && (m.swiglu ? m.gate == Activation::silu : m.activation == Activation::gelu_tanh);
  if (!ledger_ || in.fused || !relu) {
    keep(op, before, kIfBackward);
  } else {
    // Backward of ReLU reads only its output. Without backward, its input is still subtracted. This
    // is a known error, kept for agreement with earlier figures.
    const std::int64_t held = program_.tensors[before].held;
    keep(op, tensor(0, e), kIfNoBackward);
    program_.tensors.back().held = -held;
  }
  // A GELU gate is PyTorch's operation: its result is kept for the product with the values.
  if (m.swiglu && m.gate != Activation::silu) keep_held(op, tensor(wide, e), kIfBackward);
  // Other functions are PyTorch's operations even with fused operations, and the next product keeps
  // their output. ReLU keeps nothing else, which has the size of `before`.
  if (in.fused && !fused && !relu) keep(op, out, kIfBackward);
  const double columns = (m.swiglu ? 2 : 1) * wide_columns;
  if (in.fused) {
    // The incoming gradient; the recomputed output and its gradient, which is overwritten by that
    // of the input (SwiGLU: the input has a separate gradient).
    op.temporary = (rows * h + (m.swiglu ? 4 : 2) * wide_columns) * e;
    op.frees = (rows * h + columns) * e, op.frees_kept = kUnlessAgain | kSelective | kFull;
  } else if (ledger_) {
    // SwiGLU computes in fp32.
    op.temporary = m.swiglu ? (3 * e + 4 * (e < 4 ? 6 : 3)) * wide_columns : 2 * e * wide_columns;
    op.frees = columns * e, op.frees_kept = kUnlessAgain | kSelective;
  }
  return out;
}

// Adds a branch and its bias to the residual stream. Fused products include this sum if nothing
// comes between: no sum over ranks and no norm.
// Otherwise the norm before the MLP includes the first sum of a block, and a pass adds the second.
TensorId ProgramBuilder::residual(TensorId x, TensorId branch, bool before_norm) {
  if (adds_residual_ && (before_norm || !has_experts())) return branch;
  const TensorId sum = tensor(own * h, e);
  Operation& op = add(OpKind::residual, "residual", {x, branch}, {sum});
  if (in.fused) {
    op.forward.bytes = (before_norm ? 2 : 3) * whole * e, op.forward.launches = before_norm ? 0 : 1;
    return sum;
  }
  op.forward.bytes = 3 * whole * e, op.forward.launches = 1;
  op.backward_input.bytes = 4 * whole * e, op.backward_input.launches = 1;
  if (!ledger_ && m.biases.out) keep(op, tensor(own * h, 1), kUnlessAgain);
  return sum;
}

}  // namespace tessera::planner
