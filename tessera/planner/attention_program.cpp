// Operations of attention, and of context parallelism.

#include <algorithm>
#include <cmath>

#include "tessera/core/attention_blocks.h"
#include "tessera/planner/program_builder.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

// The fused scale-mask-softmax kernel handles four rows of scores from four heads at a time. With
// other numbers of heads, each of its steps is a separate kernel.
constexpr int kSoftmaxGroup = 4;
constexpr double kSeparateLaunches = 13;

}  // namespace

// All-to-all of ulysses: the ranks of cp exchange `width` values of each token, tokens for heads.
// Selective recomputation keeps its result, as that of every collective.
TensorId ProgramBuilder::exchange(const char* name, Sent sent, TensorId x, double width) {
  const TensorId y = tensor(rows * width, e);
  Operation& op = add(OpKind::exchange, name, {x}, {y});
  // Copies that put the values of each rank together, before and after.
  op.forward.bytes = 4 * rows * width * e, op.forward.launches = 2;
  op.backward_input = op.forward;
  for (const bool backward : {false, true}) {
    op.sends.push_back(
        {Axis::cp, Collective::all_to_all, sent, backward, x, rows * width, in.element, 1});
  }
  op.temporary = 2 * rows * width * e;
  keep_held(op, y, kSelective);
  return y;
}

// Attention on a CPU reads keys and values that are repeated for every query head.
TensorId ProgramBuilder::repeat_keys(TensorId qkv) {
  if (in.fused || !ledger_ || exchanged_width == 3 * context) return qkv;
  const TensorId repeated = tensor(rows * 3 * context, e);
  Operation& op = add(OpKind::rotary, "repeat", {qkv}, {repeated});
  op.forward.bytes = 2 * rows * context * e, op.forward.launches = 1;
  op.backward_input.bytes = rows * (qkv_width + 2 * context) * e;
  op.backward_input.launches = 1;
  return repeated;
}

// [Note: ring and ulysses] Attention of context-parallel ranks, each with B·T rows of every
// sequence, [Note: zig-zag]. With h heads and kv KV heads of width d on a tensor-parallel rank, and
// e bytes per value:
// - ring: the keys and values of a rank, 2·kv·d·e bytes per row, pass through all others in cp - 1
//   messages while each rank computes the block that it holds. All cp blocks of a rank have equal
//   work. Backward sends them again, and with them their gradients in fp32. Forward keeps qkv, the
//   result and the log-sum-exp, and no keys and values of other ranks.
// - ulysses: an all-to-all gives each rank whole sequences of h/cp heads, and another one returns
//   the result. Each rank sends (cp-1)/cp of its rows: (h + 2·max(kv, cp))·d values of queries,
//   keys and values, and h·d of the result. Backward does the same with gradients. Forward keeps
//   the exchanged queries, keys and values instead of its own.
// Full recomputation repeats what forward sends. Selective recomputation sends nothing again.
void ProgramBuilder::ring(Operation& op, TensorId heads_apart, double head) {
  const double messages = in.axes.size(Axis::cp) - 1, block = rows * 2 * kv * head;
  op.sends.push_back(
      {Axis::cp, Collective::send, Sent::ring, false, heads_apart, block, in.element, messages});
  op.sends.push_back(
      {Axis::cp, Collective::send, Sent::ring, true, heads_apart, block, in.element, messages});
  op.sends.push_back(
      {Axis::cp, Collective::send, Sent::ring_gradients, true, heads_apart, block, 4, messages});
  // Results of blocks, and gradients of queries and of keys and values, are summed in fp32.
  op.forward.bytes += messages * rows * context * (8 + e);
  op.backward_input.bytes += messages * (rows * context + block) * (8 + e);
  op.forward.launches *= in.axes.size(Axis::cp),
      op.backward_input.launches *= in.axes.size(Axis::cp);
  // Gradients in fp32 of the rank's own block, of the block in use, of the one that arrives next
  // and, with more than two ranks, of the one that arrives now or leaves.
  op.temporary += block * (in.axes.size(Axis::cp) == 2 ? 3 : 4) * 4;
  if (!ledger_ || in.fused) {
    // The blocks in use and in transit. With fused kernels also the queries without the keys
    // between them and their gradient in fp32, otherwise the gradients of the result and of qkv.
    op.temporary +=
        2 * block * e + rows * (in.fused ? context * (e + 4) : (context + qkv_width) * e);
    return;
  }
  // The block in use and, with four ranks or more, the next one: before that the keys have arrived
  // when the first gradients leave. The gradients of the result and, in fp32, of the queries. Of a
  // pair of chunks, the gradients, and keys and values that are repeated for the heads that share
  // them. Two sums per query and head, for all queries, and copies of them for a chunk.
  op.temporary += block * (in.axes.size(Axis::cp) > 3 ? 2 : 1) * e + rows * context * (e + 4);
  op.temporary += rows / 2 * context * 4 * (kv < heads ? 5 : 3) + 2 * rows * heads * 4;
}

// Returns the bytes of the scores that backward of attention on a CPU holds: those of a block of
// queries and a group of heads, and their gradients.
double ProgramBuilder::score_blocks() const {
  std::int64_t window = m.window;
  for (std::int64_t layer = 0; layer < m.layers && window > 0; ++layer) {
    if (m.window_of(layer) == 0) window = 0;  // the widest layer counts
  }
  const auto here =
      static_cast<std::int64_t>(exchanges() ? tokens * in.axes.size(Axis::cp) : tokens);
  const std::int64_t queries = rings() ? here / 2 : here;
  const std::int64_t scores = scores_of_block(queries, keys_of_block(queries, window));
  const auto most = static_cast<std::int64_t>(exchanges() ? heads / in.axes.size(Axis::cp) : heads);
  return 2 * 4 * real(scores * heads_of_group(std::max<std::int64_t>(1, most), scores));
}

// Product of queries and keys, softmax, and product with the values. Fused kernels compute only the
// scores below the diagonal, and recompute them in backward.
TensorId ProgramBuilder::attention(TensorId heads_apart) {
  const TensorId out = tensor(rows * context, e);
  Operation& op = add(OpKind::attention, "attention", {heads_apart}, {out});
  // Tokens of a padded sequence.
  const double head = real(m.head_dim()), seq = tokens * in.axes.size(Axis::cp);
  const double batch = real(in.batch) * heads / (exchanges() ? in.axes.size(Axis::cp) : 1);
  const double scores =
      real(in.batch) * heads * tokens * m.keys_seen(static_cast<std::int64_t>(seq));
  op.square_flops = 4 * scores * head;
  // On a GPU, attention with dropout or capped scores runs in ATen's operations.
  const bool capped = m.attention_cap > 0, drops = ledger_ && in.gpu && in.drops;
  const bool matrix = drops || (!in.fused && in.attention == Attention::unfused);
  if (matrix) {
    const bool separate = static_cast<std::int64_t>(batch) % kSoftmaxGroup != 0;
    // A ring multiplies block by block.
    const double length = rings() ? tokens : seq, blocks = rings() ? in.axes.size(Axis::cp) : 1;
    const Product with_keys{length, length, head, batch, blocks};
    const Product with_values{length, head, length, batch, blocks};
    op.forward.products = {with_keys, with_values};
    op.forward.bytes = (separate ? 9 : 2) * scores * e;
    op.forward.launches = 1 + (separate ? kSeparateLaunches : 0);
    op.backward_input.products = {with_keys, {length, head, length, batch, 3 * blocks}};
    op.backward_input.bytes = (separate ? 9 : 3) * scores * e;
    op.backward_input.launches = op.forward.launches;
    op.recomputed = true;
  } else {
    op.forward.attention_flops = 4 * scores / 2 * head;
    op.forward.launches = in.fused ? 2 : 1;
    op.backward_input.attention_flops = 2.5 * op.forward.attention_flops;
    op.backward_input.launches = in.fused ? 5 : 3;
    // Concatenates the three gradients.
    if (in.fused) op.backward_input.bytes = 2 * rows * qkv_width * e;
  }
  keep(op, heads_apart, kIfBackward);
  // Backward of a ring reads the result too.
  if (rings()) keep_held(op, out, kIfBackward);
  // Dropout keeps one byte per value. Models without biases are trained without dropout.
  const double mask = m.biases.out ? 1 : 0;
  // ATen's softmax keeps its fp32 result, tanh of capped scores too, and the product with the
  // values keeps what it multiplies. Selective recomputation keeps the product of queries and keys.
  // The mask has one byte per score.
  const bool scores_kept = (capped || drops) && !rings();
  if (scores_kept) {
    const double cap = capped ? 4 : 0, multiplied = drops || e < 4 ? e : 0;
    keep_held(op, tensor(rows * heads * seq, 4 + cap + multiplied), kIfBackward);
    keep_held(op, tensor(tokens * seq, 1), kIfBackward);
    keep_held(op, tensor(rows * heads * seq, e), kSelective);
    if (in.fused && kv < heads) keep_held(op, tensor(rows * 3 * context, e), kIfBackward);
  }
  if (ledger_) {
    keep(op, out, kSelective | (in.gpu || in.fused ? kUnlessAgain : 0));
    if (!scores_kept) keep(op, tensor(rows * heads, 4), kIfBackward | kSelective);
  } else if (matrix) {
    op.keeps.push_back({tensor(rows * heads * seq, 2 * e + mask), kUnlessAgain});
  } else if (exchanges()) {
    keep(op, out, 0);  // before it is exchanged
  }
  if (in.fused) {
    // The incoming gradient and the one of the residual; the gradients of queries, keys and values,
    // separate and concatenated; cuDNN's fp32 accumulator.
    const double width = exchanges() ? exchanged_width : qkv_width;
    op.temporary = 2 * rows * (h + width) * e + (e < 4 ? 4 * rows * h : 0);
  }
  if (rings()) ring(op, heads_apart, head);
  // The gradient of the layer's result lives until recomputation of the layer ends.
  if (ledger_ && !in.gpu && !in.fused) op.temporary_again = own * h * e;
  // Capped scores run in ATen's operations: a ring holds four matrices for a block of queries.
  if (ledger_ && !in.gpu && !in.fused && capped && rings()) {
    const auto chunk = static_cast<std::int64_t>(tokens / 2);
    op.temporary += 4 * 4 * real(in.batch) * heads * real(scores_of_block(chunk, chunk));
  } else if (ledger_ && !in.gpu && !in.fused && !capped && e == 4) {
    op.temporary += score_blocks();
    // The gradients of the result, and of queries, keys and values.
    if (!rings()) op.temporary += 4 * rows * context * e;
  }
  return out;
}

}  // namespace tessera::planner
