#include "tessera/planner/activations.h"

#include <algorithm>

#include "tessera/planner/adapters.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kRandomState = 5056;  // of the generator, kept by a recomputed segment

// The ledger counts whole lines of 64 bytes, on a GPU the blocks of its allocator.
constexpr std::int64_t kLine = 64, kGpuLine = 512;

// Tensors of one rank.
struct Sizes {
  explicit Sizes(const GptActivations& q) {
    const ModelShape& m = q.model;
    const std::int64_t rows = q.batch * q.seq, kv = std::max<std::int64_t>(1, m.kv_heads / q.tp);
    const std::int64_t heads = m.heads / q.tp, head = rows * m.head_dim() * q.element;
    const std::int64_t own = q.sequence_parallel ? rows / q.tp : rows;
    const auto tensor = [line = q.light ? kGpuLine : kLine](std::int64_t bytes) {
      return (bytes + line - 1) / line * line;
    };
    stream = tensor(own * m.hidden * q.element);
    entered = tensor(rows * m.hidden * q.element);
    qkv = tensor((heads + 2 * kv) * head);
    repeated = tensor(3 * heads * head);
    attention = tensor(heads * head);
    up = tensor((m.swiglu ? 2 : 1) * rows * m.ffn / q.tp * q.element);
    wide = tensor(rows * m.ffn / q.tp * q.element);
    norm = (m.biases.norm ? 2 : 1) * tensor(4 * own);
    softmax = tensor(4 * rows * heads);
    logits = tensor(rows * ((m.vocab + q.tp - 1) / q.tp) * q.element);
    table_rows = tensor(8 * rows) + tensor(rows);
    table = tensor(4 * m.vocab * m.hidden);
  }
  std::int64_t stream, entered;           // between the layers; where it enters one
  std::int64_t qkv, repeated, attention;  // `repeated`: with as many keys and values as queries
  std::int64_t up, wide;                  // before and after GELU or SwiGLU
  std::int64_t norm, softmax;             // fp32 numbers of each row
  std::int64_t logits;
  std::int64_t table_rows;  // that a rank looks up, and which of them are another's
  std::int64_t table;       // a whole one in fp32
};

// [Note: what a block keeps] With N = batch · seq rows of C = hidden values:
//   x → norm → y → qkv → attention → a → out → x + out = s → norm → z → up, GELU → g → down → s + d
// none: x, y, qkv (its keys and values repeated, if queries share them), a, s, z, the product
// before GELU, g; two fp32 numbers per row for each LayerNorm (one for RMSNorm) and one per row and
// head for the softmax. selective: x, the products (qkv, the attention's result and its fp32
// numbers, out, up before GELU, down). full: x. Tensor-parallel ranks have their share of what is
// between y and out, and between z and down. Sequence-parallel ones have their share of the rest
// too, but y and z are kept as they enter, whole: selective recomputation also keeps them, rather
// than gather them again.
//
// [Note: light activations] On a GPU without tensor parallelism, fused operations keep less and
// multiply no matrix again: norms, GELU and SwiGLU are cheap to repeat, so that y, z and g are made
// once more in backward, keys and values are not repeated, and rotary turns qkv where it lies. Left
// are x, qkv, a, s, up and the fp32 numbers; products add what goes past them, so that selective
// recomputation keeps the same but for the norms' numbers. The loss is computed a chunk of rows at
// a time with its gradients: instead of the logits the head keeps the gradient of its input, and
// that of its table in fp32.
std::int64_t light_block_bytes(const GptActivations& q, const Sizes& s) {
  if (q.recompute == Recompute::full) return s.stream + kGpuLine;
  const std::int64_t norms = q.recompute == Recompute::none ? 2 * s.norm : kGpuLine;
  // GELU as it is exactly is torch's, and the product behind it keeps its output.
  const std::int64_t function =
      !q.model.swiglu && q.model.activation == Activation::gelu ? s.wide : 0;
  return 2 * s.stream + s.qkv + s.attention + s.up + norms + s.softmax + function;
}

std::int64_t block_bytes(const GptActivations& q) {
  const Sizes s(q);
  if (q.light) return light_block_bytes(q, s);
  const bool gathers = q.sequence_parallel && q.tp > 1;
  // ReLU's backward reads its output alone.
  const bool relu = !q.model.swiglu && q.model.activation == Activation::relu;
  const std::int64_t before = relu ? 0 : s.up;
  switch (q.recompute) {
    case Recompute::none:
      return 2 * s.stream + 2 * s.entered + s.repeated + s.attention + before + s.wide +
             2 * s.norm + s.softmax;
    case Recompute::selective:
      return 3 * s.stream + (gathers ? 2 * s.entered : 0) + s.qkv + s.attention + s.up + s.softmax +
             kRandomState;
    case Recompute::full: return s.stream + kRandomState;
  }
  return 0;
}

}  // namespace

std::int64_t gpt_activation_bytes(const GptActivations& q) {
  const Sizes s(q);
  const std::int64_t layers = q.layers < 0 ? q.model.layers : q.layers;
  std::int64_t bytes = layers * block_bytes(q) + adapter_activation_bytes(q, layers);
  if (q.embedding && q.tp > 1 && !q.model.lora.any()) bytes += s.table_rows;
  if (q.head && q.light) {
    bytes += 2 * s.stream + s.norm + s.table + kGpuLine;
  } else if (q.head) {
    // After the blocks: the last sum, the norm and its result, and the gradient of the logits.
    bytes += s.stream + s.entered + s.norm + s.logits + kLine;
  }
  return bytes;
}

}  // namespace tessera::planner
