#include "tessera/planner/rank_load.h"

#include <algorithm>

#include "tessera/core/shard.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/run.h"

namespace tessera::planner {

namespace {

// Returns the parameters of an MLP of `width` hidden values on a rank.
double mlp_on_rank(const RunConfig& q, std::int64_t width) {
  const ModelShape& m = q.model;
  const double h = real(m.hidden), up = (m.swiglu ? 2 : 1) * real(width);
  const double cut = h * (up + real(width)) + (m.biases.mlp ? up : 0);
  return cut / q.tp() + (m.biases.mlp ? h : 0);
}

}  // namespace

double router_layer_params_on_rank(const RunConfig& q) {
  const Experts& experts = q.model.experts;
  const double h = real(q.model.hidden);
  return layer_params_on_rank(q) - mlp_on_rank(q, q.model.ffn) + real(experts.count) * h +
         (experts.shared_width > 0 ? mlp_on_rank(q, experts.shared_width) : 0) +
         (experts.shared_gate ? h : 0);
}

double layer_experts_on_rank(const RunConfig& q) {
  const Experts& experts = q.model.experts;
  if (!experts.any()) return 0;
  const std::int64_t own = experts_on_rank(experts.count, q.ep(), -1).count();
  return real(own) * mlp_on_rank(q, experts.width);
}

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
  double layers = 0, sparse = 0;
  bool embedding = false, head = false;
  for (const StageLayers& chunk : chunks) {
    const std::int64_t with_experts = q.model.experts.any() ? chunk.layers - chunk.dense : 0;
    layers += real(chunk.layers - with_experts);
    sparse += real(with_experts);
    embedding = embedding || chunk.embedding;
    head = head || chunk.head;
  }
  const double of_experts =
      sparse > 0 ? sparse * (router_layer_params_on_rank(q) + layer_experts_on_rank(q)) : 0;
  return layers * layer_params_on_rank(q) + of_experts +
         (embedding ? embedding_params_on_rank(q) : 0) +
         (head ? head_params_on_rank(q, embedding) : 0);
}

double experts_on_rank(const RunConfig& q, const std::vector<StageLayers>& chunks) {
  if (!q.model.experts.any()) return 0;
  double layers = 0;
  for (const StageLayers& chunk : chunks) layers += real(chunk.layers - chunk.dense);
  return layers * layer_experts_on_rank(q);
}

double trained_experts_on_rank(const RunConfig& q, const std::vector<StageLayers>& chunks) {
  return q.model.lora.any() ? 0 : experts_on_rank(q, chunks);
}

double gathered_experts_on_rank(const RunConfig& q, const std::vector<StageLayers>& chunks) {
  const bool whole = !q.model.lora.any() || sharding_of_stage(q.zero).params;
  return whole ? experts_on_rank(q, chunks) : 0;
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

SentParams sent_params(const RunConfig& q, const std::vector<StageLayers>& chunks) {
  const double gathered = gathered_experts_on_rank(q, chunks);
  const double trained = trained_experts_on_rank(q, chunks);
  return {gathered_on_rank(q, chunks) - gathered, trained_on_rank(q, chunks) - trained, gathered,
          trained};
}

SentParams most_sent_params(const RunConfig& q) {
  SentParams most;
  for (const auto& chunks : chunk_layers(q)) {
    const SentParams own = sent_params(q, chunks);
    most.gathered = std::max(most.gathered, own.gathered);
    most.trained = std::max(most.trained, own.trained);
    most.gathered_experts = std::max(most.gathered_experts, own.gathered_experts);
    most.trained_experts = std::max(most.trained_experts, own.trained_experts);
  }
  return most;
}

DataParallelTraffic sent_along_dp(const RunConfig& q, const SentParams& params,
                                  ReducePolicy policy) {
  const auto of = [&](double gathered, double trained, int copies) {
    TrafficInput input;
    input.stage = q.zero;
    input.dp = copies;
    input.micro_batches = static_cast<int>(q.micros());
    input.param_bytes = gathered * q.layout.param;
    input.grad_bytes = trained * q.travel();
    input.policy = policy;
    input.keep_params = q.keep_params;
    input.replicas = q.replicas();
    return data_parallel_traffic(input);
  };
  DataParallelTraffic sent = of(params.gathered, params.trained, q.copies());
  if (params.gathered_experts + params.trained_experts == 0) return sent;
  const DataParallelTraffic experts =
      of(params.gathered_experts, params.trained_experts, q.expert_copies());
  sent.reduce += experts.reduce;
  sent.gather += experts.gather;
  sent.replicate += experts.replicate;
  return sent;
}

double tokens_per_expert(const RunConfig& q) {
  const Experts& experts = q.model.experts;
  if (!experts.any()) return 0;
  return real(q.micro_batch * q.rank_tokens()) * q.ep() * real(experts.per_token) /
         real(experts.count);
}

int element_bytes(const RunConfig& q) { return q.layout.param >= 4 ? 4 : 2; }

double boundary_on_rank(const RunConfig& q) {
  return boundary_bytes(real(q.rank_tokens()) * real(q.micro_batch), real(q.model.hidden),
                        element_bytes(q), q.sequence_ranks());
}

int hop_slices(const RunConfig& q) {
  return q.slice_hops.value_or(false) && q.sequence_ranks() == 1 ? q.tp() : 1;
}

double hop_bytes(const RunConfig& q) { return boundary_on_rank(q) / hop_slices(q); }

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
