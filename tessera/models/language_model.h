#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"
#include "tessera/nn/pass.h"
#include "tessera/nn/unallocated.h"
#include "tessera/parallel/model_chunk.h"
#include "tessera/tensor_parallel/tensor_parallel.h"

namespace tessera::models {

// What a rank has of a model: a tensor-parallel share of some of its layers. All by default.
struct Part {
  comm::Group tp = {};
  bool sequence_parallel = false;  // [Note: sequence parallelism]
  bool overlap_tp = false;         // [Note: overlap]
  std::int64_t pad_vocab_to = 1;   // a rank's rows of the vocabulary: [Note: padding]
  std::int64_t first_layer = 0;
  std::int64_t last_layer = -1;  // one past the last; -1: to the end
  bool embedding = true;
  bool head = true;

  tensor_parallel::Axis axis() const { return {tp, sequence_parallel, overlap_tp}; }
};
// The same with last_layer filled in. Throws UsageError for what cannot be cut so, with what would
// do.
Part check_part(const ModelShape& shape, Part part);
// The part of it that needs no ranks yet: whether so many tensor-parallel ones divide the model.
void check_tp(const ModelShape& shape, int tp);

// The weight of a norm, and the shift of one that has it: LayerNorm with, RMSNorm without.
class NormImpl : public torch::nn::Module {
 public:
  NormImpl(std::int64_t width, bool shift, const nn::ParamOptions& options);
  void add_to(std::vector<at::Tensor>& parameters) const;

  at::Tensor weight, bias;
};
TORCH_MODULE(Norm);

class TableImpl : public torch::nn::Module {
 public:
  TableImpl(std::int64_t rows, std::int64_t width, const nn::ParamOptions& options);
  at::Tensor weight;
};
TORCH_MODULE(Table);

// x + attention(norm(x)), then x + mlp(norm(x)).
// Kept from forward to backward by GPT's, on one rank, with no recomputation, for N tokens, width
// C, H heads, e bytes an element (see nn/ops.h; x is the output of the block before):
//   x [N, C], norm1 [N, C], qkv [N, 3C], attention [N, C], x + attention [N, C], norm2 [N, C],
//   fc without bias [N, 4C], gelu [N, 4C]:   N · C · 16 · e (with ffn = 4C: 8 + 2 ffn / C)
//   mean and deviation of both norms, log-sum-exp:   N · (16 + 4 H)
// With selective recomputation: x [N, C] and the products qkv [N, 3C], attention [N, C], proj [N,
// C], fc [N, 4C], proj2 [N, C]:   N · C · 11 · e + N · 4 H; with full: x alone, N · C · e.
// On a GPU, on one tensor-parallel rank, the norms' and GELU's outputs are not kept either:
//   x [N, C], qkv [N, 3C], attention [N, C], x + attention [N, C], fc [N, 4C]:   N · C · 10 · e,
//   and N · (16 + 4 H).
class BlockImpl : public torch::nn::Module {
 public:
  // `name` is in the labels of its collectives, and says what dropout drops; `layer`: which of the
  // model's.
  BlockImpl(const ModelShape& shape, const tensor_parallel::Axis& axis, const std::string& name,
            const nn::ParamOptions& options, std::int64_t layer = 0);
  at::Tensor forward(const at::Tensor& x);  // [B, T, C], or this rank's part of the sequence

 private:
  at::Tensor forward_fused(const at::Tensor& x, const nn::Pass* pass);
  at::Tensor attend(at::Tensor qkv, const nn::Pass* pass);
  // Normalizes each head of queries and keys, of models that do.
  at::Tensor normalize_heads(const at::Tensor& qkv);
  at::Tensor activate(const at::Tensor& x) const;  // of an MLP without gate
  at::Tensor gated(const at::Tensor& x) const;     // of one with a gate: [gates, values]

  tensor_parallel::Axis axis_;
  std::string name_;
  std::int64_t heads_, kv_heads_, head_dim_;  // those of this rank
  std::vector<double> rates_;                 // of rotary positions; empty: learned ones
  double gain_;                               // of rotary positions
  std::int64_t window_;                       // of attention; 0: all
  bool swiglu_;
  Activation activation_, gate_;
  double attention_scale_, attention_cap_;  // as in ModelShape
  double norm_eps_;
  bool norm_plus_one_;
  bool fusable_;  // the fused operations have all that the block needs
  Norm norm1_{nullptr}, norm2_{nullptr};
  Norm q_norm_{nullptr}, k_norm_{nullptr};          // of models with qk_norm
  Norm post_norm1_{nullptr}, post_norm2_{nullptr};  // of models with post_norms
  tensor_parallel::ColumnParallelLinear qkv_{nullptr}, fc_{nullptr};
  tensor_parallel::RowParallelLinear proj_{nullptr}, proj2_{nullptr};
};
TORCH_MODULE(Block);

// Tokens and, where the model has them, positions: int64 ids [B, T] to [B, T, C]
// (sequence-parallel: [B, T / tp, C]).
class EmbeddingImpl : public torch::nn::Module {
 public:
  // `pad_vocab_to`: a rank's rows of the vocabulary are rounded up to a multiple: [Note: padding].
  EmbeddingImpl(const ModelShape& shape, const tensor_parallel::Axis& axis,
                const nn::ParamOptions& options, std::int64_t pad_vocab_to = 1);
  at::Tensor forward(const at::Tensor& ids);

  tensor_parallel::VocabParallelEmbedding tok{nullptr};

 private:
  // Rows for each token, where there is a table: they begin again with each document.
  at::Tensor positions_of(const at::Tensor& ids, const nn::Pass* pass) const;

  ModelShape shape_;
  tensor_parallel::Axis axis_;
  Table pos_{nullptr};
};
TORCH_MODULE(Embedding);

// The final norm, and the product with the head: the model's own or the embedding's table.
class HeadImpl : public torch::nn::Module {
 public:
  // `tok`: the embedding where it is on this rank and the head is tied to it; null: a copy.
  HeadImpl(const ModelShape& shape, const tensor_parallel::Axis& axis,
           tensor_parallel::VocabParallelEmbedding tok, const nn::ParamOptions& options,
           std::int64_t pad_vocab_to = 1);

  // The sum of the cross entropies over the targets [B, T] that are not -1, as an fp32 scalar. The
  // same on all ranks. Saves: the norm's output [N, C] and 8·N bytes, the gradient of the logits
  // [N, V].
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

// The whole model as [Note: layers] has it: "embedding", "blocks.0", …, "head". Parameters are
// called tok.weight, pos.weight, blocks.0.norm1.weight, …, norm.weight, head.weight. Throws
// UsageError for a shape that is no model of ours.
std::vector<Layer> layers_of(const ModelShape& shape, const nn::ParamOptions& options = {},
                             std::int64_t pad_vocab_to = 1);

// Layers of it in a row that run in one process, for tests and measurements. From the same seed
// they start with the same values, whatever the part. A part with a tied head alone has its own
// copy of tok.weight; whoever runs the parts sums the gradients of both.
class LanguageModel : public parallel::ModelChunkImpl {
 public:
  // On the meta device, and where options do not allocate, nothing is initialised.
  explicit LanguageModel(const ModelShape& shape, std::uint64_t seed = 0,
                         const nn::ParamOptions& options = {}, const Part& part = {});

  // Through this part's layers: int64 ids [B, T] if it has the embedding, else hidden states, to
  // hidden states [B, T, C] (sequence-parallel: [B, T / tp, C]) before the final norm.
  at::Tensor forward_part(const at::Tensor& x);
  // Of a part with the head, from what forward_part takes.
  at::Tensor loss(const at::Tensor& x, const at::Tensor& targets);
  at::Tensor forward(const at::Tensor& x);  // likewise, to logits

  const ModelShape& shape() const { return shape_; }
  const Part& part() const { return part_; }

 private:
  HeadImpl& head();

  ModelShape shape_;
  Part part_;
};

// Throws UsageError for a shape or a part that cannot be.
std::shared_ptr<LanguageModel> make_model(const ModelShape& shape, const Part& part = {},
                                          std::uint64_t seed = 0,
                                          const nn::ParamOptions& options = {});

// Throws UsageError unless ids are int64 [B, T] with T within shape.longest(), if there is one.
void check_ids(const ModelShape& shape, const at::Tensor& ids);

}  // namespace tessera::models
