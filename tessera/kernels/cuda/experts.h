#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/core/model_shape.h"
#include "tessera/kernels/cuda/cuda.h"

// Operations of mixtures of experts on a GPU besides the matrix products. Their slow references are
// the operations of ATen in tessera/experts/: router_operations.cpp, dispatch.cpp, activation.cpp.
namespace tessera::kernels::cuda {

// Maximum number of experts of a router.
inline constexpr std::size_t kMaxExperts = 1024;

// A router's tokens: rows of logits [tokens, experts.count].
struct Router {
  Experts experts = {};
  std::size_t tokens = 0;
  const float* logits = nullptr;
  // Token n is the token n % row of row n / row on this rank; its position in the whole row is
  // first + n % row below `split`, and second + n % row - split from there on. Tokens at
  // `row_tokens` or beyond are padding.
  std::size_t row = 1, split = 0;
  std::int64_t first = 0, second = 0, row_tokens = 0;
};
// Writes the experts of each token, [tokens, k], without a capacity: experts/router.h. `bias`
// [experts] may be null. `not_routed` stands for those of padding.
void choose_experts(const Router& in, const float* bias, std::int32_t not_routed,
                    std::int32_t* chosen, Stream stream);
// counts [rows of tokens, chunks, experts] += pairs, without those of padding but with dropped
// ones. A row on this rank has `chunks` chunks of equal length.
void count_experts(const Router& in, const std::int32_t* chosen, std::int32_t not_routed,
                   std::size_t chunks, unsigned long long* counts, Stream stream);
// Writes the weights of the pairs [tokens, k] and for each token the five sums of experts/router.h
// [tokens, 5] in the order of its enum Sum. `counts` [rows of tokens, experts] may be null.
void weigh_experts(const Router& in, const std::int32_t* chosen, const std::int64_t* counts,
                   float* weights, double* sums, Stream stream);
// Writes the gradient of the logits [tokens, experts]. dweights [tokens, k] and dloss (one number)
// may be null.
void weigh_experts_backward(const Router& in, const std::int32_t* chosen,
                            const std::int64_t* counts, const float* dweights, const float* dloss,
                            float* dlogits, Stream stream);

// Sorts pairs by expert, those of an expert in their order; pairs with a negative expert come last.
struct SortPairs {
  std::size_t pairs = 0, experts = 0;  // at most kMaxExperts
  const std::int32_t* chosen = nullptr;
};
// Returns the size of `scratch`, in 32-bit integers.
std::size_t sort_scratch(const SortPairs& in);
// order [pairs]: pair of each row. slots [pairs]: row of each pair, -1 for a negative expert.
// counts [experts].
void sort_pairs(const SortPairs& in, std::int32_t* order, std::int32_t* slots, std::int64_t* counts,
                std::int32_t* scratch, Stream stream);
// order[slots[i]] = i for slots that are not negative. Other elements of order keep their values.
void order_pairs(const std::int32_t* slots, std::size_t pairs, std::int32_t* order, Stream stream);

// out[r] = x[source[r]].
struct GatherRows {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0;  // dimensions of out
  const void* x = nullptr;
  const std::int32_t* source = nullptr;
};
void gather_rows(const GatherRows& in, void* out, Stream stream);

// out[t] = the sum of rows[slots[t, i]] over the slots that are not negative, rounded once.
struct CombineRows {
  DType type = DType::bf16;
  std::size_t tokens = 0, per_token = 0, cols = 0;
  const void* rows = nullptr;
  const std::int32_t* slots = nullptr;  // [tokens, per_token]
};
void combine_rows(const CombineRows& in, void* out, Stream stream);

// With a gate, h is [rows, 2 · cols], gates followed by values; otherwise [rows, cols].
struct ExpertActivation {
  DType type = DType::bf16;
  Activation activation = Activation::silu;
  bool gated = true;
  std::size_t rows = 0, cols = 0;  // dimensions of the result
  const void* h = nullptr;
  const float* weights = nullptr;  // [rows]
};
// y = act(h) · weight of the row.
void expert_activation(const ExpertActivation& in, void* y, Stream stream);
// dh may be h. y may be dy: the result of expert_activation() again. dweights [rows].
void expert_activation_backward(const ExpertActivation& in, const void* dy, void* dh, void* y,
                                float* dweights, Stream stream);

}  // namespace tessera::kernels::cuda
