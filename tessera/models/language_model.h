#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/context_parallel/attention.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"
#include "tessera/experts/layer.h"
#include "tessera/nn/pass.h"
#include "tessera/nn/unallocated.h"
#include "tessera/parallel/model_chunk.h"
#include "tessera/tensor_parallel/layers.h"

namespace tessera::models {

// Part of a model on one rank: tensor-parallel shards of some layers. Default: the whole model.
struct Part {
  comm::Group tp = {};
  bool sequence_parallel = false;  // [Note: sequence parallelism]
  bool overlap_tp = false;         // [Note: overlap]
  std::int64_t pad_vocab_to = 1;   // multiple of a rank's rows of the vocabulary: [Note: padding]
  std::int64_t first_layer = 0;
  std::int64_t last_layer = -1;  // one past the last layer; -1: all layers
  bool embedding = true;
  bool head = true;
  context_parallel::Axis cp = default_context();  // Pass::part has the tokens
  comm::Group ep = {};                            // ranks that share the experts

  tensor_parallel::Axis axis() const { return {tp, sequence_parallel, overlap_tp}; }

 private:
  // One rank. A function, because GCC 12 warns about a member with nested braces.
  static context_parallel::Axis default_context() {
    context_parallel::Axis axis;
    axis.kind = ContextKind::automatic;
    return axis;
  }
};
// Returns the part with last_layer filled in. Throws UsageError, with a suggestion, if the model
// cannot be cut in this way.
Part check_part(const ModelShape& shape, Part part);
// Throws UsageError if this number of tensor-parallel ranks does not divide the model.
void check_tp(const ModelShape& shape, int tp);

// Rotary positions of a layer: rotary_rates() and rotary_gain().
struct RotaryAngles {
  std::vector<double> rates;
  double gain = 1;
};
// Returns the rotary positions of layers with or without a window, which may have their own base.
RotaryAngles rotary_angles(const ModelShape& shape, bool windowed);

// Parameters of a norm: LayerNorm has a weight and a shift, RMSNorm only a weight.
class NormImpl : public torch::nn::Module {
 public:
  NormImpl(std::int64_t width, bool shift, const nn::ParamOptions& options);
  void add_to(std::vector<at::Tensor>& parameters) const;

  at::Tensor weight, bias;
};
TORCH_MODULE(Norm);

// Parameter of an embedding table.
class TableImpl : public torch::nn::Module {
 public:
  TableImpl(std::int64_t rows, std::int64_t width, const nn::ParamOptions& options);
  at::Tensor weight;
};
TORCH_MODULE(Table);

// Block of a transformer: x + attention(norm(x)), then x + mlp(norm(x)).
// A block of GPT keeps these activations from forward to backward, on one rank, without
// recomputation, for N tokens, width C, H heads, e bytes per element (see nn/ops.h; x is the output
// of the previous block):
//   x [N, C], norm1 [N, C], qkv [N, 3C], attention [N, C], x + attention [N, C], norm2 [N, C],
//   fc without bias [N, 4C], gelu [N, 4C]:   N · C · 16 · e (with ffn = 4C: 8 + 2 ffn / C)
//   mean and deviation of both norms, log-sum-exp:   N · (16 + 4 H)
// With selective recomputation: x [N, C] and the products qkv [N, 3C], attention [N, C], proj [N,
// C], fc [N, 4C], proj2 [N, C]:   N · C · 11 · e + N · 4 H; with full: only x, N · C · e.
// On a GPU the outputs of norms and GELU are not kept:
//   x [N, C], qkv [N, 3C], attention [N, C], x + attention [N, C], fc [N, 4C]:   N · C · 10 · e,
//   and N · (16 + 4 H). Tensor-parallel ranks share qkv, attention and fc; with sequence
//   parallelism the others too.
class BlockImpl : public torch::nn::Module {
 public:
  // `name` is in the labels of its collectives, and selects the random numbers of dropout. `layer`:
  // index in the model.
  BlockImpl(const ModelShape& shape, const tensor_parallel::Axis& axis, const std::string& name,
            const nn::ParamOptions& options, std::int64_t layer = 0,
            const context_parallel::Axis& cp = {}, const comm::Group& ep = {});
  at::Tensor forward(const at::Tensor& x);  // [B, T, C], or this rank's part of the sequence

 private:
  at::Tensor attend(at::Tensor qkv, const nn::Pass* pass);
  // Normalizes each head of queries and keys, if the model has qk_norm.
  at::Tensor normalize_heads(const at::Tensor& qkv);
  at::Tensor activate(const at::Tensor& x) const;  // for an MLP without a gate, not fused
  at::Tensor gated(const at::Tensor& x) const;     // for an MLP with a gate that is not SiLU

  ModelShape shape_;
  tensor_parallel::Axis axis_;
  context_parallel::Axis cp_;
  std::string name_;
  std::int64_t heads_, kv_heads_, head_dim_;  // of this rank
  std::int64_t window_;                       // of attention; 0: unlimited
  RotaryAngles rotary_;                       // empty if positions are learned
  Norm norm1_{nullptr}, norm2_{nullptr};
  Norm q_norm_{nullptr}, k_norm_{nullptr};          // of models with qk_norm
  Norm post_norm1_{nullptr}, post_norm2_{nullptr};  // of models with post_norms
  tensor_parallel::ColumnParallelLinear qkv_{nullptr}, fc_{nullptr};
  tensor_parallel::RowParallelLinear proj_{nullptr}, proj2_{nullptr};
  experts::MixtureOfExperts experts_{nullptr};  // instead of fc and proj2
};
TORCH_MODULE(Block);

// Embedding of tokens and, if the model learns them, positions: int64 ids [B, T] to [B, T, C]
// (sequence-parallel: [B, T / tp, C]).
class EmbeddingImpl : public torch::nn::Module {
 public:
  // A rank's rows of the vocabulary are rounded up to a multiple of `pad_vocab_to`: [Note:
  // padding].
  EmbeddingImpl(const ModelShape& shape, const tensor_parallel::Axis& axis,
                const nn::ParamOptions& options, std::int64_t pad_vocab_to = 1);
  at::Tensor forward(const at::Tensor& ids);

  tensor_parallel::VocabParallelEmbedding tok{nullptr};

 private:
  // Returns the position embeddings of the tokens; positions restart with each document.
  at::Tensor positions_of(const at::Tensor& ids, const nn::Pass* pass) const;

  ModelShape shape_;
  tensor_parallel::Axis axis_;
  Table pos_{nullptr};
};
TORCH_MODULE(Embedding);

// Final norm and product with the head: a separate matrix or the embedding's table.
class HeadImpl : public torch::nn::Module {
 public:
  // `tok`: embedding on this rank that the head is tied to. Null: a tied head makes a copy.
  HeadImpl(const ModelShape& shape, const tensor_parallel::Axis& axis,
           tensor_parallel::VocabParallelEmbedding tok, const nn::ParamOptions& options,
           std::int64_t pad_vocab_to = 1);

  // Returns the sum of the cross entropies over the targets [B, T] that are not -1, as an fp32
  // scalar, equal on all ranks. Saves for backward: the norm's output [N, C] and 8·N bytes, the
  // gradient of the logits [N, V].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& targets);
  at::Tensor logits(const at::Tensor& x);  // [B, T, V] on every rank

 private:
  at::Tensor normed(const at::Tensor& x);
  const at::Tensor& weight() const;

  ModelShape shape_;
  tensor_parallel::Axis axis_;
  tensor_parallel::VocabParallelEmbedding tok_{nullptr};
  Norm norm_{nullptr};
  tensor_parallel::ColumnParallelLinear head_{nullptr};
};
TORCH_MODULE(Head);

// Returns the whole model as a list of layers ([Note: layers]): "embedding", "blocks.0", …, "head".
// The names of parameters are tok.weight, pos.weight, blocks.0.norm1.weight, …, norm.weight,
// head.weight. With adapters ([Note: adapters]) all other parameters are frozen (requires_grad is
// false): engines train, reduce and keep optimizer state only for the adapters. Throws UsageError
// for a shape that no model here has.
std::vector<Layer> layers_of(const ModelShape& shape, const nn::ParamOptions& options = {},
                             std::int64_t pad_vocab_to = 1);

// Consecutive layers of a model that run in one process, for tests and benchmarks. The same seed
// gives the same initial values in any part. A part with a tied head but no embedding has its own
// copy of tok.weight; the caller sums the gradients of both copies.
class LanguageModel : public parallel::ModelChunkImpl {
 public:
  // Parameters on the meta device, and those that options do not allocate, are not initialized.
  explicit LanguageModel(const ModelShape& shape, std::uint64_t seed = 0,
                         const nn::ParamOptions& options = {}, const Part& part = {});

  // Runs the layers of this part, up to the final norm. Takes int64 ids [B, T] if the part has the
  // embedding, otherwise hidden states. Returns hidden states [B, T, C] (sequence-parallel:
  // [B, T / tp, C]).
  at::Tensor forward_part(const at::Tensor& x);
  // Returns the loss. Takes the input of forward_part(). The part must have the head.
  at::Tensor loss(const at::Tensor& x, const at::Tensor& targets);
  at::Tensor forward(const at::Tensor& x);  // same as loss(), but returns logits

  const ModelShape& shape() const { return shape_; }
  const Part& part() const { return part_; }

 private:
  HeadImpl& head();

  ModelShape shape_;
  Part part_;
};

// Makes a part of a model. Throws UsageError if the shape or the part is invalid.
std::shared_ptr<LanguageModel> make_model(const ModelShape& shape, const Part& part = {},
                                          std::uint64_t seed = 0,
                                          const nn::ParamOptions& options = {});

// Throws UsageError unless ids are int64 [B, T] and rows are within shape.longest(), if there is
// one. `tokens`: length of whole rows; 0: that of ids.
void check_ids(const ModelShape& shape, const at::Tensor& ids, std::int64_t tokens = 0);

}  // namespace tessera::models
