#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/question.h"

// What lies on one rank of the pipeline and of the tensor-parallel group, before ZeRO.
namespace tessera::planner {

inline double real(std::int64_t value) { return static_cast<double>(value); }

// Parameters on a rank. Matrices, their biases and the vocabulary are cut by tp; norms, positions
// and the biases added after a row-parallel product are on every rank; heads of keys and values are
// doubled where there are fewer of them than ranks.
double layer_params_on_rank(const Question& settled);
double vocab_params_on_rank(const Question& settled);      // one table of tokens
double embedding_params_on_rank(const Question& settled);  // tokens and positions
// With the final norm. A tied head on another rank than the embedding is a second table.
double head_params_on_rank(const Question& settled, bool beside_embedding);
double params_on_rank(const Question& settled, const std::vector<StageShare>& chunks);

// Those that have a gradient: all, or with adapters these alone.
double trained_on_rank(const Question& settled, const std::vector<StageShare>& chunks);
// Those that are gathered: the trained ones after their update, all at stage 3.
double gathered_on_rank(const Question& settled, const std::vector<StageShare>& chunks);

// Bytes of a bucket of gradients on a rank that trains so many parameters.
double bucket_bytes(const Question& settled, double params);

// Bytes of a value between the layers.
int element_bytes(const Question& settled);

// Bytes of what a rank has at the boundary of two stages, of one micro-batch, and what it sends of
// that to the other: [Note: slices].
double boundary_on_rank(const Question& settled);
double hop_bytes(const Question& settled);
// Bytes of gradient that the two ranks with a tied embedding add up, once a step.
double tied_bytes(const Question& settled);

// Bytes that one layer keeps from forward for backward, of one micro-batch: the formulas of
// Korthikanti et al. (2022), for any width of the MLP and number of kv-heads.
double layer_activations(const Question& settled);
// Likewise if nothing were recomputed: what backward has again while it recomputes a layer.
double whole_layer_activations(const Question& settled);

// How many (micro-batch, chunk) pairs the rank holds activations of at once, at most.
std::int64_t in_flight(const Question& settled, int rank);

}  // namespace tessera::planner
