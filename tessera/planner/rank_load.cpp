#include "tessera/planner/rank_load.h"

#include <algorithm>

#include "tessera/core/bucket_size.h"
#include "tessera/planner/pipeline.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/run.h"

namespace tessera::planner {
namespace {

// Bytes per token and layer, in multiples of the hidden width.
double kept_per_token(const Question& q, bool scores) {
  const ModelShape& m = q.model;
  const double e = element_bytes(q), tp = q.tp(), h = real(m.hidden);
  // Dropout keeps a byte per value; models without biases train without it.
  const double mask = m.biases.out ? 1 : 0;
  // Inputs of two norms, of the attention's products and of the MLP's; two masks.
  const double on_all = 4 * e + 2 * mask, q_width = real(m.q_width()) / h;
  // Queries, keys and values; what attention gives; the MLP before and after its function (SwiGLU:
  // gate, up and their product).
  const double kv = 2 * e * std::max(real(m.kv_heads) / tp, 1.0) * real(m.head_dim()) / h;
  const double cut = 2 * e * q_width + (m.swiglu ? 3 : 2) * e * real(m.ffn) / h;
  const double matrix = scores ? (2 * e + mask) * real(m.heads) * real(q.seq) / h : 0;
  return (q.sequence_parallel ? on_all / tp : on_all) + kv + (cut + matrix) / tp;
}

}  // namespace

double layer_params_on_rank(const Question& q) {
  const ModelShape& m = q.model;
  const double h = real(m.hidden), ffn = real(m.ffn), tp = q.tp();
  const double kv = std::max(real(m.kv_heads) / tp, 1.0) * real(m.head_dim());
  const double q_width = real(m.q_width()), up = (m.swiglu ? 2 : 1) * ffn;
  double cut = 2 * h * q_width + h * (up + ffn);
  double whole = (m.biases.norm ? 4 : 2) * h * (m.post_norms ? 2 : 1) + 2 * h * kv;
  if (m.qk_norm) whole += 2 * real(m.head_dim());
  if (m.biases.qkv) cut += q_width, whole += 2 * kv;
  if (m.biases.out) whole += h;
  if (m.biases.mlp) cut += up, whole += h;
  return cut / tp + whole;
}

double vocab_params_on_rank(const Question& q) {
  return real((q.model.vocab + q.tp() - 1) / q.tp() * q.model.hidden);
}

double embedding_params_on_rank(const Question& q) {
  return vocab_params_on_rank(q) + real(q.model.positions * q.model.hidden);
}

double head_params_on_rank(const Question& q, bool beside_embedding) {
  const bool shared = q.model.tied && beside_embedding;
  return real(q.model.final_norm_params()) + (shared ? 0 : vocab_params_on_rank(q));
}

double bucket_bytes(const Question& q, double params) {
  if (q.bucket_bytes > 0) return q.bucket_bytes;
  return real(default_bucket_bytes(static_cast<std::int64_t>(std::min(params, 1e15) * q.travel())));
}

double params_on_rank(const Question& q, const std::vector<StageShare>& chunks) {
  if (q.state_only()) return q.params / (static_cast<double>(q.tp()) * q.pp());
  double layers = 0;
  bool embedding = false, head = false;
  for (const StageShare& chunk : chunks) {
    layers += real(chunk.layers);
    embedding = embedding || chunk.embedding;
    head = head || chunk.head;
  }
  return layers * layer_params_on_rank(q) + (embedding ? embedding_params_on_rank(q) : 0) +
         (head ? head_params_on_rank(q, embedding) : 0);
}

double trained_on_rank(const Question& q, const std::vector<StageShare>& chunks) {
  if (q.state_only() || !q.model.lora.any()) return params_on_rank(q, chunks);
  double layers = 0;
  for (const StageShare& chunk : chunks) layers += real(chunk.layers);
  return layers * adapters_on_rank(layer_program(program_input(q), ProgramPart::layer));
}

double gathered_on_rank(const Question& q, const std::vector<StageShare>& chunks) {
  const double trained = trained_on_rank(q, chunks);
  if (q.state_only() || !q.model.lora.any()) return trained;
  return trained + (sharding_of_stage(q.zero).params ? params_on_rank(q, chunks) : 0);
}

int element_bytes(const Question& q) { return q.layout.param >= 4 ? 4 : 2; }

double boundary_on_rank(const Question& q) {
  return boundary_bytes(real(q.seq) * real(q.micro_batch), real(q.model.hidden), element_bytes(q),
                        q.sequence_parallel ? q.tp() : 1);
}

double hop_bytes(const Question& q) {
  return boundary_on_rank(q) / (q.slice_hops.value_or(false) && !q.sequence_parallel ? q.tp() : 1);
}

double tied_bytes(const Question& q) {
  if (!q.model.tied || q.model.lora.any()) return 0;
  const auto own = static_cast<std::int64_t>(vocab_params_on_rank(q));
  return real(tied_elements(own, q.shards(), 0, sharding_of_stage(q.zero).optimizer)) *
         q.layout.grad;
}

double layer_activations(const Question& q) {
  const double values = real(q.seq) * real(q.micro_batch) * real(q.model.hidden);
  if (q.recompute == Recompute::full) {
    return values * element_bytes(q) / (q.sequence_parallel ? q.tp() : 1);
  }
  const bool scores = q.attention == Attention::unfused && q.recompute == Recompute::none;
  return values * kept_per_token(q, scores);
}

double whole_layer_activations(const Question& q) {
  return real(q.seq) * real(q.micro_batch) * real(q.model.hidden) *
         kept_per_token(q, q.attention == Attention::unfused);
}

std::int64_t in_flight(const Question& q, int rank) {
  const std::int64_t p = q.pp(), k = q.micros(), v = q.chunks;
  if (q.schedule == "gpipe") return k;
  if (q.schedule == "zb-h1") return std::min(p, k);
  if (q.schedule == "zb-v") return 2 * std::min(p, k);
  if (v == 1) return std::min<std::int64_t>(p - rank, k);
  const std::int64_t groups = std::max<std::int64_t>(1, k / p);
  const std::int64_t largest = (k + groups - 1) / groups;
  return std::min(2 * (p - 1 - rank) + (v - 1) * largest + 1, k * v);
}

}  // namespace tessera::planner
