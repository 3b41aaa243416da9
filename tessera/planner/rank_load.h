#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/run_config.h"
#include "tessera/planner/state.h"
#include "tessera/schedule/schedule.h"

// Load of one pipeline and tensor-parallel rank, before ZeRO.
namespace tessera::planner {

inline double real(std::int64_t value) { return static_cast<double>(value); }

// Return numbers of parameters on a rank. Matrices, their biases and the vocabulary are sharded by
// tp. Norms, positions and the biases added after a row-parallel product are on every rank. KV
// heads are replicated if there are fewer of them than ranks.
double layer_params_on_rank(const RunConfig& resolved);  // of a layer without experts
// Of a layer with experts, except those of the experts; and those of the experts of a rank with the
// most.
double router_layer_params_on_rank(const RunConfig& resolved);
double layer_experts_on_rank(const RunConfig& resolved);
double vocab_params_on_rank(const RunConfig& resolved);      // one token table
double embedding_params_on_rank(const RunConfig& resolved);  // tokens and positions
// Includes the final norm. A tied head on another rank than the embedding has its own table.
double head_params_on_rank(const RunConfig& resolved, bool beside_embedding);
double params_on_rank(const RunConfig& resolved, const std::vector<StageLayers>& chunks);
// Returns those of them that belong to experts, whose state is sharded over
// RunConfig::expert_shards() ranks.
double experts_on_rank(const RunConfig& resolved, const std::vector<StageLayers>& chunks);

// Returns the parameters with a gradient: all, or only the adapters if there are any.
double trained_on_rank(const RunConfig& resolved, const std::vector<StageLayers>& chunks);
// Returns the gathered parameters: the trained ones after their update, or all at stage 3.
double gathered_on_rank(const RunConfig& resolved, const std::vector<StageLayers>& chunks);
// Return those of them that belong to experts.
double trained_experts_on_rank(const RunConfig& resolved, const std::vector<StageLayers>& chunks);
double gathered_experts_on_rank(const RunConfig& resolved, const std::vector<StageLayers>& chunks);

// Parameters that a rank gathers and trains: those outside experts, and those of experts.
struct SentParams {
  double gathered = 0, trained = 0;
  double gathered_experts = 0, trained_experts = 0;
};
SentParams sent_params(const RunConfig& resolved, const std::vector<StageLayers>& chunks);
// Returns the largest of each over the pipeline ranks.
SentParams most_sent_params(const RunConfig& resolved);
// Returns the data-parallel traffic of a rank. Experts are gathered and reduced over the ranks with
// the same experts.
DataParallelTraffic sent_along_dp(const RunConfig& resolved, const SentParams& params,
                                  ReducePolicy policy);

// Returns the bytes of a gradient bucket on a rank that trains `params` parameters.
double bucket_bytes(const RunConfig& resolved, double params);

// Returns the mean number of tokens of a micro-batch that one expert receives, from all ranks of
// ep.
double tokens_per_expert(const RunConfig& resolved);

// Returns the bytes of an activation value.
int element_bytes(const RunConfig& resolved);

// Returns the bytes that one micro-batch of b·s tokens sends from stage to stage, and the same
// number back as gradient: b·s·h elements, sharded over the ranks that split the sequence.
inline double boundary_bytes(double tokens, double hidden, double element_bytes,
                             int sequence_ranks = 1) {
  return tokens * hidden * element_bytes / sequence_ranks;
}

// Returns the bytes that a pipeline rank sends per step: for each micro-batch, the activation of
// each of its stages to the next stage and the gradient to the previous one, if these are on other
// ranks. boundaries[b]: bytes between stages b and b + 1.
inline double pipeline_bytes(const schedule::Schedule& schedule, int rank,
                             const std::vector<double>& boundaries) {
  double bytes = 0;
  for (int c = 0; c < schedule.chunks; ++c) {
    const int stage = schedule.stage(rank, c);
    if (stage + 1 < schedule.stage_count() && schedule.home(stage + 1).rank != rank) {
      bytes += boundaries[static_cast<std::size_t>(stage)];
    }
    if (stage > 0 && schedule.home(stage - 1).rank != rank) {
      bytes += boundaries[static_cast<std::size_t>(stage - 1)];
    }
  }
  return bytes * schedule.micros;
}
// As above, with equal boundaries. With stages assigned round-robin, a middle rank sends 2 · chunks
// · micro-batches of them, and the first and the last rank `micros` fewer.
inline double pipeline_bytes(const schedule::Schedule& schedule, int rank, double boundary) {
  const int count = schedule.stage_count() - 1;
  return pipeline_bytes(schedule, rank,
                        std::vector<double>(static_cast<std::size_t>(count), boundary));
}

// Return the bytes of one micro-batch that a rank has at the boundary of two stages, and those that
// it sends to the other stage: one of hop_slices() equal slices, [Note: slices].
double boundary_on_rank(const RunConfig& resolved);
int hop_slices(const RunConfig& resolved);
double hop_bytes(const RunConfig& resolved);
// Returns the gradient bytes that the two ranks with a tied embedding sum once per step.
double tied_bytes(const RunConfig& resolved);

// Returns the bytes that one layer keeps for backward per micro-batch. For Megatron-LM and PyTorch
// these follow Korthikanti et al. (2022), extended to any MLP width and number of KV heads.
double layer_activations(const RunConfig& resolved);

// Returns the largest number of (micro-batch, chunk) pairs whose activations the rank holds at
// once.
std::int64_t in_flight(const RunConfig& resolved, int rank);

}  // namespace tessera::planner
