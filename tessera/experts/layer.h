#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/experts.h"
#include "tessera/nn/unallocated.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::experts {

// [Note: expert parallelism] Each rank of a group of `ep` ranks has a part of a layer's experts:
// rank r has those from r · count / ep to (r + 1) · count / ep, rounded down, so the numbers may
// differ by one. A rank routes its own tokens, sends each to the ranks of its experts, applies its
// experts to the tokens it received, and sends the results back: all-to-alls with unequal counts.
// Backward sends the gradients the same ways. Tensor-parallel ranks share the matrices of each
// expert and route the same tokens.
//
// The experts of a token, its weights and the losses below depend only on the token's row, so they
// are the same on every mesh.
//
// [Note: balance] Losses that spread the tokens over the experts, for E experts, k per token, and a
// row of T tokens with router probabilities p [T, E] (of sigmoid scores: divided by their sum):
//   balance = E / (k · T) · Σ_e count_e · mean_t p_te     count_e: tokens of the row that select e
//   z = mean_t (log Σ_e exp(logit_te))²
// The loss of a step grows by the mean over the rows of balance_loss · balance + z_loss · z, for
// each layer with experts. The count has no gradient. Layers report the two sums and the gradient
// reaches backward by [Note: auxiliary losses] in nn/pass.h.

// Sizes and options of a layer in terms of the whole model.
struct LayerOptions {
  std::int64_t hidden = 0;
  Experts experts = {};
  bool gated = true;                         // experts have a gate (SwiGLU)
  Activation activation = Activation::silu;  // of the gate, or of the only product
  bool biases = false;                       // of the experts' linears
  std::string label = "experts";             // in messages and traces; selects random numbers
  nn::ParamOptions tensors = {};
};

// Ranks that compute one layer together. By default one rank.
struct Ranks {
  tensor_parallel::Axis tp = {};
  comm::Group cp = {};  // ranks that share the tokens of each row: Pass::part
  comm::Group ep = {};
};

// Counts of a layer since the last take_load(), summed over the tokens that this rank routed in
// training. Recomputation does not count them again. Tensor-parallel ranks have equal counts.
struct Load {
  at::Tensor tokens;   // int64 [count]: tokens sent to each expert, without the dropped ones
  double dropped = 0;  // token-expert pairs beyond the capacity
  double routed = 0;   // tokens
  double entropy = 0;  // sum over tokens of the entropy of p, in nats
  double balance = 0;  // sum over rows of `balance`, this rank's part; without its factor
  double z = 0;        // sum over rows of `z`, this rank's part; without its factor
  double rows = 0;     // rows of this rank; with context parallelism divided by cp
};

// Mixture of experts, [Note: experts] in core/experts.h.
//
// Parameters, in this order: router.weight [count, hidden]; for each expert of this rank by its
// number in the model, 0.fc.weight [width, hidden] (with a gate first its `width` rows, then those
// of the values: [2 · width, hidden]), 0.fc.bias, 0.proj2.weight [hidden, width], 0.proj2.bias;
// shared.fc.weight and so on; shared_gate.weight [1, hidden]. Those of the experts have
// ParamSpec::of_expert set. fc is cut over tp by rows and proj2 by columns. With
// Experts::selection_bias there is a buffer selection_bias, fp32 [count].
//
// An expert without a token gets no gradient (.grad stays undefined), so optimizers leave it alone.
// On a GPU with one rank of ep its gradient is zeros, because the host does not wait for the
// counts; Load::tokens shows it.
//
// Router logits, scores and weights are in fp32 or better: [Note: routing] in experts/router.h. The
// weight of an expert multiplies the activation between its matrices, so no result of an expert is
// kept.
//
// saves, for N tokens [N, hidden], e bytes per element and M rows (token-expert pairs) of this
// rank's experts: x (shared; with sequence parallelism the gathered N·hidden·e), logits, 4·N·count,
// expert numbers, their order and weights, 12·N·k, and the rows' products with fc, M · rows of fc ·
// e; 8·count bytes for the counts, and with a balance loss 8·B·count. With ep > 1 the received
// rows, M·hidden·e, and their weights, 4·M instead of 4·N·k. Shared experts save their product with
// fc and its activation, and with a gate their result. Selective recomputation keeps the same,
// except for x and the weights, and the result, N·hidden·e; no row is sent twice.
class MixtureOfExpertsImpl : public torch::nn::Module, public tensor_parallel::Sharded {
 public:
  // Throws UsageError if the ranks do not fit the sizes.
  MixtureOfExpertsImpl(Ranks ranks, const LayerOptions& options);
  // x [B, T, hidden], or this rank's shard of the sequence; the result has the shape of x. Tokens
  // at Pass::row_tokens or beyond are padding: they are sent to no expert. Without an open pass
  // there is no jitter, and the losses have no gradient. Collective over tp, cp and ep.
  at::Tensor forward(const at::Tensor& x);
  // Empty: all parameters belong to modules inside, which have the specs.
  std::vector<ParamSpec> specs() const override;

  // Returns the counts since the last call and sets them to zero. On a GPU this waits for it.
  Load take_load();
  // Moves the selection bias by bias_rate · sign(mean - tokens_e) for the tokens of a step, summed
  // over all ranks. No effect without Experts::bias_rate.
  void update_selection_bias(const at::Tensor& tokens);

  const LayerOptions& options() const { return options_; }
  // Returns the numbers of the first expert of this rank and of the one after its last.
  std::int64_t first_expert() const { return first_; }
  std::int64_t last_expert() const { return last_; }

 private:
  struct State;

  at::Tensor shared(const at::Tensor& tokens) const;
  void add_to_load(const at::Tensor& sent, const at::Tensor& sums, std::int64_t rows);

  Ranks ranks_;
  LayerOptions options_;
  std::int64_t first_ = 0, last_ = 0;
  std::shared_ptr<State> state_;
};
TORCH_MODULE(MixtureOfExperts);

}  // namespace tessera::experts
