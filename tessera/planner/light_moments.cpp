#include <algorithm>

#include "tessera/planner/run_parts.h"

namespace tessera::planner {
namespace {

// As kernels/cuda/gemm.h and nn/gpu_loss.cpp have them: what a product may use, and how many rows
// have their logits at a time.
constexpr std::int64_t kWorkspace = std::int64_t{32} << 20;
constexpr std::int64_t kLogitBlock = std::int64_t{256} << 20, kLogitRows = 128;

std::int64_t logit_block(const RunQuestion& q, std::int64_t rows) {
  const std::int64_t row = q.model.vocab * q.layout.param;
  return std::min(rows, std::max(kLogitRows, kLogitBlock / row / kLogitRows * kLogitRows)) * row;
}

}  // namespace

// [Note: temporaries on a GPU] Gradients of weights are written where the engine wants them, so
// what a pass has beside the activations is the gradients of what lies between the products, and
// what is made again:
//   loss        some rows of logits, the norm's output; in backward the gradient of its input
//   MLP         the gradient that came in; GELU's output again and its gradient, which becomes that
//               of its input (SwiGLU: which has one of its own)
//   attention   the gradients that came in and go past; those of queries, keys and values, and once
//               more side by side; what cuDNN adds up in fp32. By then what the MLP kept has gone
//   embedding   the gradient that came in, and that of the table
// The workspace of a product and the batch (as it came, and where a graph reads it) are there
// always.
std::vector<Moment> light_moments(const RunQuestion& q, const ModelPart& part) {
  const ModelShape& m = q.model;
  const std::int64_t e = q.layout.param, rows = q.micro_batch * q.seq;
  const std::int64_t stream = rows * m.hidden * e, wide = rows * m.ffn * e;
  const std::int64_t qkv = rows * (m.heads + 2 * m.kv_heads) * m.head_dim() * e;
  const std::int64_t always = kWorkspace + 32 * rows * q.accumulation;
  const std::int64_t block = kept_bytes(q, {0, 1, false, false}, q.recompute);
  const std::int64_t whole = kept_bytes(q, {0, 1, false, false}, Recompute::none);
  const bool turned = q.recompute == Recompute::selective && m.positions == 0;
  const std::int64_t again = std::max<std::int64_t>(0, whole - block) + (turned ? qkv : 0);
  std::vector<Moment> all = {{always, 0}};
  std::int64_t gone = sent_on(q, part);
  if (part.head) {
    all.push_back({always + std::max(logit_block(q, rows) + stream, 2 * stream), 0});
    gone += kept_bytes(q, {0, 0, false, true}, q.recompute);
  }
  if (part.last_layer > part.first_layer) {
    const std::int64_t mlp = stream + (m.swiglu ? 4 : 2) * wide;
    const std::int64_t summed = e < 4 ? 4 * rows * m.hidden : 0;
    all.push_back({always + again + mlp, gone});
    all.push_back({always + again + 2 * stream + 2 * qkv + summed,
                   gone + stream + (m.swiglu ? 2 : 1) * wide});
    gone += (part.last_layer - part.first_layer) * block;
  }
  if (part.embedding) all.push_back({always + stream + e * m.vocab * m.hidden, gone});
  return all;
}

}  // namespace tessera::planner
