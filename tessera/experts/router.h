// Selection of experts and the losses that balance them. Internal, also used by decoders; tests
// compare both versions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>

#include "tessera/comm/group.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/sequence_part.h"

namespace tessera::experts {

// [Note: routing] All arithmetic on logits is in fp64 and rounded to fp32 at the end. A token's
// logits, experts and weights depend only on the token:
// - On the CPU logits are products in fp64, rounded once to fp32. The library that multiplies
//   chooses its blocks by the number of tokens, which can change the last bits of fp64. That
//   changes a rounded logit about once in 10^8.
// - On a GPU logits are products with sums in fp32, without TF32. cuBLAS may choose another kernel
//   for another number of tokens, so the last bit can depend on it; for equal shapes the bits are
//   equal.
// Experts are in the order of their scores; equal scores in the order of their numbers. Without a
// selection bias logits are compared instead of scores, which has the same order and no rounding.

// Stands for the experts of a token that is not routed because it is padding.
inline constexpr std::int32_t kNotRouted = std::numeric_limits<std::int32_t>::min();

// Tokens of one call: `rows` rows with `tokens` tokens each on this rank.
struct TokenRows {
  std::int64_t rows = 0, tokens = 0;
  SequencePart part = {};
  std::int64_t row_tokens = 0;  // of a whole row, without padding

  std::int64_t total() const { return rows * tokens; }
  bool padded() const { return part.parts * tokens > row_tokens; }
};

// Random factors of the router's input: [Note: dropout] in nn/pass.h. Element c of the token at
// `position` has number position · hidden + c of its sample.
struct Jitter {
  double size = 0;  // 0: none
  std::uint64_t seed = 0, stream = 0, first_sample = 0;
};

struct RouterCall {
  Experts experts;
  TokenRows rows;
  Jitter jitter = {};
  comm::Group cp = {};
  std::string label;
};

// Places of the sums of a call, fp64 [kSums]: those of Load, of all tokens of this rank.
enum Sum : std::int64_t { kDropped, kRouted, kEntropy, kBalance, kZ, kSums };

struct Routed {
  at::Tensor weights;  // fp32 [N, k]; 0 for pairs that are not sent
  // int32 [N, k]: the number of an expert, ~number of a pair beyond the capacity, or kNotRouted.
  at::Tensor experts;
  at::Tensor sent;  // int64 [count]: pairs sent to each expert
  at::Tensor loss;  // fp32: sum of the losses of the rows, the part of this rank's tokens
  at::Tensor sums;  // fp64 [kSums]
};

// Routes tokens x [N, hidden] by the router's weight [count, hidden]. Weights and loss have
// gradients. `bias`: of the selection, fp32 [count]; may be undefined. Collective over cp if there
// is a balance loss or a capacity. saves: x (shared), logits, N·count·4, expert numbers, N·k·4, and
// with a balance loss rows·count·8 bytes.
Routed route(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
             const RouterCall& call);

struct Chosen {
  at::Tensor experts;  // int32 [N, k], by score
  at::Tensor weights;  // fp32 [N, k]
};
// Returns the experts of each token for logits [N, count], fp32, as route() does but without
// gradients, losses and a capacity: no token is dropped.
Chosen choose_experts(const at::Tensor& logits, const at::Tensor& bias, const Experts& options);

struct Weighed {
  at::Tensor weights, loss, sums;  // as in Routed
};
// The steps of route(), without gradients.
struct RouterSteps {
  // Returns x times the random factors, in fp64 on the CPU and in fp32 elsewhere.
  at::Tensor (*input)(const at::Tensor& x, const RouterCall& call);
  // Returns the experts of each token, without a capacity.
  at::Tensor (*choose)(const at::Tensor& logits, const at::Tensor& bias, const RouterCall& call);
  // Returns the numbers of pairs by row, chunk of this rank and expert: int64 [rows, chunks,
  // count].
  at::Tensor (*count)(const at::Tensor& experts, const RouterCall& call);
  // Marks the pairs beyond the capacity. `before`: pairs in earlier chunks, shaped as counts.
  void (*drop)(const at::Tensor& experts, const at::Tensor& before, std::int64_t capacity,
               const RouterCall& call);
  // `counts`: int64 [rows, count] of whole rows; undefined without a balance loss.
  Weighed (*weigh)(const at::Tensor& logits, const at::Tensor& experts, const at::Tensor& counts,
                   const RouterCall& call);
  // Returns the gradient of the logits, fp32. Either of the two gradients may be undefined.
  at::Tensor (*backward)(const at::Tensor& logits, const at::Tensor& experts,
                         const at::Tensor& counts, const at::Tensor& dweights,
                         const at::Tensor& dloss, const RouterCall& call);
};
extern const RouterSteps kRouterLoops;       // for the CPU
extern const RouterSteps kRouterOperations;  // ATen's operations, for all devices
// Returns the fastest steps for tokens, logits or numbers of experts like these.
const RouterSteps& router_steps(const at::Tensor& like, const RouterCall& call);

}  // namespace tessera::experts
