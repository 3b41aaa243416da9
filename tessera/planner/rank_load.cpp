#include "tessera/planner/rank_load.h"

#include <algorithm>

#include "tessera/core/shard.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/run.h"

namespace tessera::planner {

double layer_params_on_rank(const RunConfig& q) {
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

double vocab_params_on_rank(const RunConfig& q) {
  return real((q.model.vocab + q.tp() - 1) / q.tp() * q.model.hidden);
}

double embedding_params_on_rank(const RunConfig& q) {
  return vocab_params_on_rank(q) + real(q.model.positions * q.model.hidden);
}

double head_params_on_rank(const RunConfig& q, bool beside_embedding) {
  const bool shared = q.model.tied && beside_embedding;
  return real(q.model.final_norm_params()) + (shared ? 0 : vocab_params_on_rank(q));
}

double bucket_bytes(const RunConfig& q, double params) {
  if (q.bucket_bytes > 0) return q.bucket_bytes;
  return real(default_bucket_bytes(static_cast<std::int64_t>(std::min(params, 1e15) * q.travel())));
}

double params_on_rank(const RunConfig& q, const std::vector<StageLayers>& chunks) {
  if (q.state_only()) return q.params / (static_cast<double>(q.tp()) * q.pp());
  double layers = 0;
  bool embedding = false, head = false;
  for (const StageLayers& chunk : chunks) {
    layers += real(chunk.layers);
    embedding = embedding || chunk.embedding;
    head = head || chunk.head;
  }
  return layers * layer_params_on_rank(q) + (embedding ? embedding_params_on_rank(q) : 0) +
         (head ? head_params_on_rank(q, embedding) : 0);
}

double trained_on_rank(const RunConfig& q, const std::vector<StageLayers>& chunks) {
  if (q.state_only() || !q.model.lora.any()) return params_on_rank(q, chunks);
  double layers = 0;
  for (const StageLayers& chunk : chunks) layers += real(chunk.layers);
  return layers * adapters_on_rank(layer_program(program_input(q), ProgramPart::layer));
}

double gathered_on_rank(const RunConfig& q, const std::vector<StageLayers>& chunks) {
  const double trained = trained_on_rank(q, chunks);
  if (q.state_only() || !q.model.lora.any()) return trained;
  return trained + (sharding_of_stage(q.zero).params ? params_on_rank(q, chunks) : 0);
}

TrafficInput traffic_input(const RunConfig& q, double gathered, double trained) {
  TrafficInput input;
  input.stage = q.zero;
  input.dp = q.copies();
  input.micro_batches = static_cast<int>(q.micros());
  input.param_bytes = gathered * q.layout.param;
  input.grad_bytes = trained * q.travel();
  input.policy = q.policy();
  input.keep_params = q.keep_params;
  input.replicas = q.replicas();
  return input;
}

int element_bytes(const RunConfig& q) { return q.layout.param >= 4 ? 4 : 2; }

double boundary_on_rank(const RunConfig& q) {
  return boundary_bytes(real(q.rank_tokens()) * real(q.micro_batch), real(q.model.hidden),
                        element_bytes(q), q.sequence_ranks());
}

double hop_bytes(const RunConfig& q) {
  return boundary_on_rank(q) /
         (q.slice_hops.value_or(false) && q.sequence_ranks() == 1 ? q.tp() : 1);
}

double tied_bytes(const RunConfig& q) {
  if (!q.model.tied || q.model.lora.any()) return 0;
  const auto own = static_cast<std::int64_t>(vocab_params_on_rank(q));
  return real(tied_elements(own, q.shards(), 0, sharding_of_stage(q.zero).optimizer)) *
         q.layout.grad;
}

double layer_activations(const RunConfig& q) {
  return kept_bytes(layer_program(program_input(q), ProgramPart::layer), q.recompute);
}

std::int64_t in_flight(const RunConfig& q, int rank) {
  const std::int64_t p = q.pp(), k = q.micros(), v = q.chunks;
  if (q.schedule == ScheduleChoice::gpipe) return k;
  if (q.schedule == ScheduleChoice::zb_h1) return std::min(p, k);
  if (q.schedule == ScheduleChoice::zb_v) return 2 * std::min(p, k);
  if (v == 1) return std::min<std::int64_t>(p - rank, k);
  const std::int64_t groups = std::max<std::int64_t>(1, k / p);
  const std::int64_t largest = (k + groups - 1) / groups;
  return std::min(2 * (p - 1 - rank) + (v - 1) * largest + 1, k * v);
}

}  // namespace tessera::planner
