#include <algorithm>

#include "tessera/planner/run_parts.h"

namespace tessera::planner {
namespace {

// As kernels/cuda and nn/ have them: what one product may use, and a chunk of logits.
constexpr std::int64_t kWorkspace = std::int64_t{32} << 20, kWorkspaces = 2;
constexpr std::int64_t kLogitChunk = std::int64_t{256} << 20;

}  // namespace

// [Note: temporaries on a GPU] Gradients of weights are written where the engine wants them, so
// what backward has beside the activations is the gradients of what lies between the products, and
// what is made again:
//   head        a chunk of logits, the norm's output, the gradient of the table in fp32
//   MLP         the gradient that came in; GELU's output again and its gradient (SwiGLU: and that
//               of gate and value); the norm's output again and its gradient
//   attention   the gradient that came in, that of attention's result; those of queries, keys and
//               values, and side by side; the norm's output again
//   embedding   the gradient that came in, and that of the table
// Workspaces of the products and the batch are always there.
std::vector<Moment> light_moments(const RunQuestion& q, const ModelPart& part) {
  const ModelShape& m = q.model;
  const std::int64_t e = q.layout.param, rows = q.micro_batch * q.seq;
  const std::int64_t stream = rows * m.hidden * e, wide = rows * m.ffn * e;
  const std::int64_t qkv = rows * (m.heads + 2 * m.kv_heads) * m.head_dim() * e;
  const std::int64_t table = m.vocab * m.hidden;
  const std::int64_t always = kWorkspaces * kWorkspace + 16 * rows * q.accumulation;
  const std::int64_t block = kept_bytes(q, {0, 1, false, false}, q.recompute);
  const std::int64_t whole = kept_bytes(q, {0, 1, false, false}, Recompute::none);
  const std::int64_t again = std::max<std::int64_t>(0, whole - block);
  std::vector<Moment> all = {{always, 0}};
  std::int64_t gone = sent_on(q, part);
  if (part.head) {
    const std::int64_t logits = std::min(kLogitChunk, rows * m.vocab * e);
    all.push_back({always + logits + stream + (e < 4 ? 4 : 0) * table, 0});
    gone += kept_bytes(q, {0, 0, false, true}, q.recompute);
  }
  if (part.last_layer > part.first_layer) {
    const std::int64_t mlp = 3 * stream + (m.swiglu ? 4 : 2) * wide;
    const std::int64_t attention = 3 * stream + 2 * qkv;
    all.push_back({always + again + std::max(mlp, attention), gone});
    gone += (part.last_layer - part.first_layer) * block;
  }
  if (part.embedding) all.push_back({always + stream + e * table, gone});
  return all;
}

}  // namespace tessera::planner
