// Programs of the parts of a model.

#include "tessera/planner/layer_program.h"

#include <algorithm>
#include <cmath>

#include "tessera/planner/program_builder.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

// Chunk of logits in the fused loss (nn/gpu_loss.cpp): bytes, and rows to round to.
constexpr double kLogitBlock = 256.0 * (1 << 20), kLogitRows = 128;

}  // namespace

// [Note: operations of a layer] With N = batch · seq rows of C = hidden values:
//   x → norm → y → qkv → attention → a → proj → x + o = s → norm → z → fc, GELU → g → proj2 → s + d
// Without recomputation it keeps x, y, qkv (with keys and values repeated if queries share them),
// a, s, z, the product before GELU and g; two fp32 numbers per row for each LayerNorm (one for
// RMSNorm) and one per row and head for the softmax. Selective recomputation keeps x and the
// results of the products and of attention; full recomputation keeps only x. Tensor parallelism
// shards the tensors between y and o and between z and d. Sequence parallelism shards the others
// too.
//
// [Note: fused operations] On a GPU, fused operations keep less without repeating a matrix product.
// Norms, GELU and SwiGLU are cheap, so backward recomputes y, z and g; keys and values are not
// repeated; rotary updates qkv in place. This leaves x, qkv, a, s, the product before GELU and the
// fp32 numbers. On one tensor-parallel rank, products add the residual, so selective recomputation
// keeps the same tensors except the norms' numbers. With sequence parallelism backward gathers y
// and z again. The loss is computed with its gradients in chunks of rows: instead of the logits,
// the head keeps the gradient of its input, and that of its table in fp32.
void ProgramBuilder::layer() {
  const auto cut = [&](std::int64_t length, std::int64_t most) {
    return ParamSpec::Segment{length, std::min<std::int64_t>(most, in.axes.size(Axis::tp))};
  };
  const ParamSpec::Segment queries = cut(m.q_width(), m.heads),
                           keys = cut(m.kv_width(), m.kv_heads);
  const std::int64_t width = m.q_width() + 2 * m.kv_width();
  const TensorId x = checkpoint();
  const TensorId y = norm("norm1.weight", "norm1.bias", x);
  const TensorId qkv = linear({"qkv",
                               "qkv.weight",
                               "qkv.bias",
                               m.biases.qkv,
                               false,
                               m.hidden,
                               width,
                               h,
                               qkv_width,
                               {queries, keys, keys}},
                              y, rows * qkv_width);
  TensorId a = split_heads(m.qk_norm ? head_norms(qkv) : qkv);
  if (exchanges()) {
    a = attention(repeat_keys(exchange("exchange", Sent::exchange_qkv, a, exchanged_width)));
    a = exchange("exchange back", Sent::exchange_result, a, context);
    const bool read =
        !frozen_ || std::any_of(adapters_.begin(), adapters_.end(),
                                [](const Adapter& each) { return each.linear == "proj"; });
    if (in.fused && read) keep(program_.operations.back(), a, kUnlessAgain);
  } else {
    a = attention(a);
  }
  Linear proj{
      "proj", "proj.weight", "proj.bias", m.biases.out, true, m.q_width(), m.hidden, context, h};
  // The result of attention, which a ring keeps too.
  if (ledger_ && !in.fused && !frozen_ && !rings()) proj.frees = e * rows * context;
  TensorId o = linear(proj, a, own * h);
  if (m.post_norms) o = norm_behind("post_norm1.weight", "post_norm1.bias", o);
  const TensorId s = residual(x, o, /*before_norm=*/true);
  const TensorId z = norm_behind("norm2.weight", "norm2.bias", s);
  TensorId d = has_experts() ? experts(z)
                             : mlp("fc.weight", "fc.bias", "proj2.weight", "proj2.bias", m.ffn, z);
  if (m.post_norms) d = norm("post_norm2.weight", "post_norm2.bias", d);
  residual(s, d, /*before_norm=*/false);
  const double norms = (m.biases.norm ? 2 : 1) * h, kv_width = real(2 * m.kv_width());
  if (!frozen_ && cuts_sequence_) {
    sum_gradients("norms", Sent::norms, (m.post_norms ? 4 : 2) * norms, 0);
  }
  if (!frozen_ && has_experts()) {
    const double gate = m.experts.shared_gate ? h : 0;
    sum_gradients("router", Sent::expert_weights, real(m.experts.count) * h + gate, 1);
  }
  if (!frozen_ && m.qk_norm) sum_gradients("qk_norm", Sent::norms, real(2 * m.head_dim()), 1);
  if (!frozen_ && m.kv_heads < in.axes.size(Axis::tp)) {
    sum_gradients("kv-heads", Sent::shared, kv_width * (h + (m.biases.qkv ? 1 : 0)), 0);
  }
  sum_gradients("kv-heads of adapters", Sent::adapters, shared_adapters_, 1);
}

TensorId ProgramBuilder::mlp(const char* fc_name, const char* fc_bias, const char* proj2,
                             const char* proj2_bias, std::int64_t width, TensorId z,
                             bool of_experts) {
  const MlpSizes sizes = mlp_sizes(width, rows, m.swiglu, in.axes.size(Axis::tp));
  const double wide = sizes.wide, wide_columns = sizes.columns, ffn = sizes.width;
  // Backward of the MLP sets the peak. For Megatron-LM's layer, it holds the gradients of the
  // tensors between the products, and of the scores.
  const int gates = m.swiglu ? 2 : 1;
  double down_temporary = 0, up_temporary = 0;
  if (!ledger_) {
    down_temporary = rows * e * (3 * h + (gates + 1) * ffn);
    if (in.attention == Attention::unfused) down_temporary += 2 * e * rows * heads * real(in.seq);
  } else if (!in.fused) {
    const double weight = h * real(width / in.axes.size(Axis::tp));
    down_temporary = product_temporary(wide_columns, own * h, weight);
    up_temporary = e * gates * wide_columns +
                   product_temporary(rows * h, gates * wide_columns, gates * weight);
  }
  Linear fc{"fc", fc_name, fc_bias, m.biases.mlp, false, m.hidden, gates * width, h, sizes.up};
  const ParamSpec::Segment columns{width, std::min<std::int64_t>(width, in.axes.size(Axis::tp))};
  for (int i = 0; i < gates; ++i) fc.segments.push_back(columns);
  fc.temporary = up_temporary;
  fc.of_experts = of_experts;
  // Its input. Only the backward of attention comes later and sets a peak.
  if (ledger_ && !in.fused && !frozen_ && !of_experts) fc.frees = e * rows * h;
  const TensorId g = activation(linear(fc, z, gates * wide), sizes);
  Linear down{"proj2", proj2, proj2_bias, m.biases.mlp, true, width, m.hidden, ffn, h};
  down.temporary = down_temporary;
  down.of_experts = of_experts;
  if (ledger_ && !in.fused) down.frees = e * wide_columns;
  return linear(down, g, own * h);
}

void ProgramBuilder::embedding() {
  const TensorId x = tensor(own * h, e);
  Operation& op = add(OpKind::lookup, "tok", {}, {x});
  const Param positions{"pos.weight", m.positions, m.hidden};
  Param table{"tok.weight", m.vocab, m.hidden, 0};
  table.padded = true;
  add_params(op, table, m.positions > 0 ? &positions : nullptr);
  if (in.fused && in.axes.size(Axis::tp) == 1) {
    op.forward.bytes = 3 * rows * h * e, op.forward.launches = 4;
    // Rows are sorted and summed into a zeroed table, which is added to the gradient.
    op.backward_weight.bytes = (3 * rows + 4 * vocab) * h * e, op.backward_weight.launches = 20;
    if (in.grad != in.element) {
      op.backward_weight.bytes += vocab * h * (e + in.grad), op.backward_weight.launches += 2;
    }
  } else {
    op.forward.bytes = 5 * rows * h * e, op.forward.launches = 12;
    op.backward_weight.bytes = 4 * rows * h * e + vocab * h * accumulate_;
    op.backward_weight.launches = 12;
  }
  // Positions of the tokens of this rank, which index the table.
  if (in.axes.size(Axis::cp) > 1 && m.positions > 0)
    keep_held(op, tensor(rows / real(in.batch), 4), kIfTrained);
  cut(op, true, Sent::embedding, x, x);
  if (in.axes.size(Axis::tp) > 1) {
    // Rows that this rank looks up, and the mask of rows that belong to other ranks.
    keep_held(op, tensor(rows, 8), kIfTrained);
    keep_held(op, tensor(rows, 1), kIfTrained);
  }
  // The incoming gradient, and the gradient of the table.
  if (!frozen_) op.temporary = e * (own * h + vocab * h);
}

// Adds the final norm, the logits and the loss.
void ProgramBuilder::head() {
  const TensorId x = tensor(own * h, e);
  program_.with_gradient = std::uint64_t{1} << x;
  Param table{m.tied ? "tok.weight" : "head.weight", m.vocab, m.hidden, 0};
  table.padded = true, table.tied = m.tied;
  if (m.tied) add(OpKind::lookup, "tok", {}, {}).params.push_back(table);
  const TensorId y = norm("norm.weight", "norm.bias", x);
  Operation& last_norm = program_.operations.back();
  last_norm.backward_weight = {};
  if (in.fused && m.logit_cap == 0) {
    fused_head(y);
    if (!m.tied) program_.operations.back().params.push_back(table);
    return;
  }
  last_norm.forward.bytes = 4 * whole * e;
  last_norm.backward_input.bytes = 3 * whole * e, last_norm.backward_input.launches = 1;
  const TensorId logits = tensor(rows * vocab, e);
  Operation& product = add(OpKind::linear, "head", {y}, {logits});
  product.trained = !frozen_;
  if (!m.tied) product.params.push_back(table);
  product.forward.products = {{rows, vocab, h}};
  product.backward_input.products = {{rows, h, vocab}};
  product.backward_weight.products = {{h, vocab, rows}};
  product.backward_weight.bytes = vocab * h * accumulate_, product.backward_weight.launches = 1;
  keep(product, y, kUnlessAgain);
  cut(product, false, Sent::head, y, logits);
  Operation& loss = add(OpKind::loss, "loss", {logits}, {});
  loss.forward.bytes = loss.backward_input.bytes = rows * vocab * in.logit_bytes / 2;
  loss.forward.launches = 10, loss.backward_input.launches = 8;
  keep(loss, logits, kUnlessAgain);
  keep(loss, tensor(1, 4), kUnlessAgain);
  const double values = rows * vocab, stream = rows * h;
  if (!ledger_) {
    // Logits, their fp32 copy (in fp32 training, the logits themselves) and its gradient, and the
    // inputs of the final norm and of the head.
    loss.temporary = values * (e == 4 ? 8 : e + 8) + 2 * e * stream;
  } else {
    const double own_table = frozen_ ? 0 : vocab * h;
    loss.temporary = e < 4 ? e * (stream + own_table) + 4 * (values + 2 * stream + vocab * h)
                           : e * (2 * stream + own_table);
    // Capped logits on a GPU: the fp32 logits and the slope of the cap, in forward.
    if (in.fused) loss.temporary = std::max(8 * values, e * (stream + own_table));
  }
  if (in.axes.size(Axis::tp) > 1) {
    // First the maximum, then the sum and the target logit.
    loss.sends.push_back({Axis::tp, Collective::all_reduce, Sent::loss, false, 0, rows, 4, 1});
    loss.sends.push_back({Axis::tp, Collective::all_reduce, Sent::loss, false, 0, 2 * rows, 4, 2});
  }
  if (!frozen_ && cuts_sequence_) {
    sum_gradients("norms", Sent::norms, (m.biases.norm ? 2 : 1) * h, 0);
  }
}

// Forward also computes the gradients: of its input, and of the table in fp32, accumulated over
// chunks.
void ProgramBuilder::fused_head(TensorId y) {
  const double row = vocab * e;
  const double at_once =
      std::min(rows, std::max(kLogitRows, std::floor(kLogitBlock / row / kLogitRows) * kLogitRows));
  const double times = rows / at_once, chunks = std::ceil(times);
  Operation& op = add(OpKind::loss, "head and loss", {y}, {});
  op.trained = !frozen_;
  op.forward.products = {{at_once, vocab, h, 1, times}};
  op.forward.bytes = rows * vocab * in.logit_bytes, op.forward.launches = chunks;
  op.backward_input.products = {{at_once, h, vocab, 1, times}};
  op.backward_input.bytes = 2 * rows * h * e, op.backward_input.launches = 2;
  op.backward_weight.products = {{vocab, h, at_once, 1, times}};
  op.backward_weight.bytes = vocab * h * (8 * (chunks - 1) + 4 + e),
  op.backward_weight.launches = 2;
  if (!m.tied && in.grad != in.element) {
    op.backward_weight.bytes += vocab * h * (e + in.grad), op.backward_weight.launches += 1;
  }
  keep(op, tensor(rows * h, e), kUnlessAgain);
  if (!frozen_) keep(op, tensor(vocab * h, 4), kUnlessAgain);
  keep(op, tensor(1, 4), kUnlessAgain);
  op.temporary = std::max(at_once * row + rows * h * e, 2 * rows * h * e);
  if (in.axes.size(Axis::tp) == 1) return;
  cut(op, false, Sent::head, y, y);
  // Every chunk sends the maximum of each row, then the sum and the target logit. The buffers of a
  // chunk are padded to a multiple of the ranks.
  Operation& loss = add(OpKind::collective, "sums of the loss", {}, {});
  for (const double values : {1, 2}) {
    const double whole_chunks = std::floor(times), rest = rows - whole_chunks * at_once;
    const double elements = in.axes.size(Axis::tp) *
                            (whole_chunks * std::ceil(values * at_once / in.axes.size(Axis::tp)) +
                             std::ceil(values * rest / in.axes.size(Axis::tp)));
    loss.sends.push_back(
        {Axis::tp, Collective::all_reduce, Sent::loss, false, 0, elements, 4, values * chunks});
  }
  if (!frozen_ && cuts_sequence_) {
    sum_gradients("norms", Sent::norms, (m.biases.norm ? 2 : 1) * h, 0);
  }
}

Program layer_program(const ProgramInput& input, ProgramPart part) {
  ProgramBuilder builder(input, part);
  switch (part) {
    case ProgramPart::embedding: builder.embedding(); break;
    case ProgramPart::first_layer:
    case ProgramPart::dense_layer:
    case ProgramPart::layer: builder.layer(); break;
    case ProgramPart::head: builder.head(); break;
  }
  return builder.take();
}

Programs all_programs(const ProgramInput& input) {
  Programs all{layer_program(input, ProgramPart::embedding),
               layer_program(input, ProgramPart::layer),
               layer_program(input, ProgramPart::head),
               {},
               {}};
  if (input.model.lora.any()) all.first_layer = layer_program(input, ProgramPart::first_layer);
  if (input.model.experts.dense_layers > 0) {
    all.dense_layer = layer_program(input, ProgramPart::dense_layer);
  }
  return all;
}

Programs programs_in_memory(const RunConfig& q) { return programs_in_memory(q, -1); }

Programs programs_in_memory(const RunConfig& q, int ep_rank) {
  ProgramInput in = memory_input(q);
  in.ep_rank = ep_rank;
  return all_programs(in);
}

}  // namespace tessera::planner
