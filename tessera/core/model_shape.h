#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/core/experts.h"
#include "tessera/core/run_options.h"

namespace tessera {

// Scaling of rotary positions for sequences longer than those of the original training. The effect
// of each kind on the frequencies is described in [Note: rotary scaling].
struct RotaryScaling {
  // Names as in config.json.
  enum class Kind : std::uint8_t { none, linear, llama3, dynamic, yarn };
  Kind kind = Kind::none;
  double factor = 1;
  // llama3: frequencies of waves longer than original_positions / low_freq_factor are divided by
  // the factor. Those of waves shorter than original_positions / high_freq_factor are unchanged.
  // In between they are interpolated.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_positions = 8192;  // context of the original training: llama3, yarn
  // yarn: pairs that make more than beta_fast rotations in original_positions keep their frequency.
  // Pairs that make fewer than beta_slow have it divided by the factor. In between it is
  // interpolated linearly in the index of the pair. `truncate` rounds the first and last pair of
  // that interval outwards.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  // yarn: factor of queries and keys. 0: rotary_gain() computes it from `factor` and, if both are
  // set, mscale and mscale_all_dim.
  double attention_factor = 0;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool operator==(const RotaryScaling&) const = default;
};
// Returns the name in checkpoints and messages.
const char* name(RotaryScaling::Kind kind);
// Throws UsageError that names the invalid field.
void check(const RotaryScaling& scaling, double base);

// [Note: rotary scaling] Pair i of a head rotates by base^(-2i / width) from one token to the next.
//   linear   all frequencies are divided by the factor
//   llama3   frequencies of long waves are divided
//   yarn     frequencies of slow pairs are divided; queries and keys are scaled by rotary_gain()
//   dynamic  unchanged up to ModelShape::context tokens. In longer sequences the frequencies of
//            all tokens would depend on the length and, in transformers, on earlier calls. Such
//            sequences are rejected.
// rotary_rates() returns these frequencies, computed in fp32 as in Hugging Face's models, which
// were trained with exactly these values.
std::vector<double> rotary_rates(std::int64_t width, double base,
                                 const RotaryScaling& scaling = {});
// Returns the factor of cosines and sines, and so of queries and keys. 1 except for yarn.
double rotary_gain(const RotaryScaling& scaling);

// Low-rank adaptation: [Note: adapters] in lora.h.
struct Lora {
  std::int64_t rank = 0;  // 0: no adapters; the whole model is trained
  double alpha = 16;
  std::string targets = "auto";  // linears that get an adapter: adapters_of()
  double dropout = 0;            // probability, 0 to below 1; training steps only

  bool any() const { return rank > 0; }
  double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const Lora&) const = default;
};

// Biases of the linears, and of the norms: LayerNorm has one, RMSNorm does not.
struct Biases {
  Biases(bool all = true) : qkv(all), out(all), mlp(all), norm(all) {}  // NOLINT: all or none
  // Sets each one. Qwen2 has biases for queries, keys and values only.
  Biases(bool of_qkv, bool of_out, bool of_mlp, bool of_norm)
      : qkv(of_qkv), out(of_out), mlp(of_mlp), norm(of_norm) {}

  bool qkv, out;  // attention: queries, keys and values together; output
  bool mlp;
  bool norm;
  bool any_linear() const { return qkv || out || mlp; }
  bool operator==(const Biases&) const = default;
};

// Family of a model: the tensor names and config fields of its files at Hugging Face. A model given
// by its sizes has none; the export then chooses one that has all its parts.
enum class Family : std::uint8_t {
  none,
  gpt2,
  llama,
  qwen2,
  mistral,
  qwen3,
  phi3,
  gemma2,
  gemma3,
  mixtral,
  qwen3_moe,
  dots1
};
inline constexpr Family kFamilies[] = {
    Family::gpt2,   Family::llama,  Family::qwen2,   Family::mistral,   Family::qwen3, Family::phi3,
    Family::gemma2, Family::gemma3, Family::mixtral, Family::qwen3_moe, Family::dots1};
// Returns the model_type of config.json, "" for none.
const char* name(Family family);

// Sizes of a transformer, as in `--layers --hidden …`, and its variant.
struct ModelShape {
  std::string name;  // empty if the model was given by its sizes
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // fewer than `heads`: grouped-query attention
  std::int64_t ffn = 0;       // hidden width of the MLP
  std::int64_t vocab = 0;
  std::int64_t positions = 0;   // rows of a learned position table; 0: rotary positions
  bool swiglu = false;          // the MLP has three matrices instead of two
  Biases biases = true;         // of linears and norms
  bool tied = true;             // the output head shares the embedding
  double rotary_base = 1e4;     // theta of rotary positions
  double norm_eps = 1e-5;       // added to the variance in norms
  std::int64_t head_width = 0;  // 0: hidden / heads
  Activation activation = Activation::gelu_tanh;  // if not swiglu
  RotaryScaling rotary_scaling = {};
  // A token attends to the last `window` tokens, with itself, in layers >= window_from. 0: all.
  std::int64_t window = 0;
  std::int64_t window_from = 0;
  // Every window_period-th layer sees all tokens, whatever the window. 0: no layer does.
  std::int64_t window_period = 0;
  double window_rotary_base = 0;  // of layers with a window, without scaling; 0: as in the others
  Activation gate = Activation::silu;  // function of the gate of a gated MLP (swiglu)
  bool qk_norm = false;        // RMSNorm over each head of queries and keys, before positions
  bool post_norms = false;     // norms after attention and after the MLP, before the residual sums
  bool norm_plus_one = false;  // RMSNorm multiplies by 1 + weight
  double embedding_scale = 1;  // factor of the embedding's rows
  double attention_scale = 0;  // factor of attention scores; 0: 1 / sqrt(head_dim())
  double attention_cap = 0;    // c: scores become c · tanh(score / c). 0 disables it.
  double logit_cap = 0;        // the same for logits
  Family family = Family::none;
  std::int64_t context = 0;  // rotary: longest sequence of the training; 0: unknown
  double init_range = 0.02;  // standard deviation of initial matrices
  Experts experts = {};      // [Note: experts]
  Lora lora = {};            // [Note: adapters]. The counts below exclude them.

  std::int64_t head_dim() const { return head_width > 0 ? head_width : hidden / heads; }
  std::int64_t q_width() const { return heads * head_dim(); }  // all heads together
  std::int64_t kv_width() const { return kv_heads * head_dim(); }
  bool rotary() const { return positions == 0; }
  // Returns the longest supported sequence; 0: no limit. The limit is the number of rows of a
  // learned position table, or the context of dynamic rotary scaling: longer sequences would change
  // the frequencies.
  std::int64_t longest() const {
    if (positions > 0) return positions;
    return rotary_scaling.kind == RotaryScaling::Kind::dynamic ? context : 0;
  }
  // Returns the attention window of a layer; 0: all tokens.
  std::int64_t window_of(std::int64_t layer) const {
    const bool sees_all = window_period > 0 && (layer + 1) % window_period == 0;
    return layer >= window_from && !sees_all ? window : 0;
  }
  // Returns true if a layer has experts instead of one MLP.
  bool has_experts(std::int64_t layer) const {
    return experts.any() && layer >= experts.dense_layers;
  }
  // Returns the number of layers with experts.
  std::int64_t expert_layers() const;
  // Returns the number of layers with a window.
  std::int64_t window_layers() const;
  // Returns twice the number of keys that a query attends to, averaged over queries and layers.
  // Equal to `tokens` without a window. The cost of attention is proportional to it.
  double keys_seen(std::int64_t tokens) const;

  // Exact numbers of parameters.
  std::int64_t layer_params() const;         // of a layer without experts
  std::int64_t expert_layer_params() const;  // of a layer with experts
  std::int64_t block_params() const;
  // Of a layer with experts: those that a token uses.
  std::int64_t active_layer_params() const;
  std::int64_t active_params() const;      // of the model
  std::int64_t embedding_params() const;   // tokens and positions
  std::int64_t final_norm_params() const;  // before the head
  std::int64_t head_params() const;        // 0 if tied
  std::int64_t params() const;
};

// Returns the named models: gpt-tiny, gpt2-124m … gpt2-xl, gpt3-125m … gpt3-175b, llama2-*,
// llama3-*, llama3.1-*, llama3.2-*, qwen2.5-*, mistral-7b.
const std::vector<ModelShape>& model_shapes();
// Returns the model with one of these names or of the other common names of GPT-2 (gpt2,
// gpt2-medium, …, gpt2-1558m). Throws UsageError with the nearest name if there is none.
ModelShape find_model_shape(std::string_view name);

// Returns a GPT-2-like shape. Throws UsageError that names the invalid size.
ModelShape gpt_shape(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                     std::int64_t vocab, std::int64_t positions);
// Throws UsageError that names the invalid size.
void check(const ModelShape& shape);

// Number of heads of attention, and of KV heads, on each tensor-parallel rank.
struct RankHeads {
  std::int64_t all = 1, kv = 1;
};
// Returns these numbers on a mesh.
RankHeads heads_on_rank(const ModelShape& shape, const Axes& axes);
// Returns the kind of attention that context-parallel ranks use on this mesh: `asked`, or a choice
// for automatic. Throws UsageError for ulysses if they do not divide the heads of a rank, or
// neither divide its KV heads nor are a multiple of them, and on a GPU for ring if scores are
// capped. There automatic prefers ulysses.
ContextKind context_kind_for(const ModelShape& shape, ContextKind asked, const Axes& axes,
                             bool tessera_on_gpu = false);

// Returns the reason for shape.longest(), for messages: "the model has 1024 positions".
std::string longest_reason(const ModelShape& shape);

// Returns a warning if sequences of `tokens` tokens are longer than the context of the model, or
// "". The model can run them.
std::string context_note(const ModelShape& shape, std::int64_t tokens);

// Returns the vocabulary rounded up to a multiple, as Megatron does (128 · tp).
std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple);

}  // namespace tessera
