#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/lora.h"
#include "tessera/core/rotary.h"

namespace tessera {

// Which linears have biases, and whether norms have a shift: LayerNorm with, RMSNorm without.
struct Biases {
  Biases(bool all = true) : qkv(all), out(all), mlp(all), norm(all) {}  // NOLINT: all or none
  // Each by itself, as Qwen2 needs, whose queries, keys and values alone have some.
  Biases(bool of_qkv, bool of_out, bool of_mlp, bool of_norm)
      : qkv(of_qkv), out(of_out), mlp(of_mlp), norm(of_norm) {}

  bool qkv, out;  // of attention: queries, keys and values together; the linear behind them
  bool mlp;
  bool norm;
  bool any_linear() const { return qkv || out || mlp; }
  bool operator==(const Biases&) const = default;
};

// Function of an MLP, between its matrices or on its gate. `silu` is for gates alone.
enum class Activation : std::uint8_t { gelu_tanh, gelu, relu, silu };
// As checkpoints and messages spell it.
const char* name(Activation activation);

// Family of a model: the names and fields that its files have at Hugging Face. A model from its
// sizes has none; one that fits its parts is chosen when it is exported.
enum class Family : std::uint8_t { none, gpt2, llama, qwen2, mistral, qwen3, phi3, gemma2, gemma3 };
inline constexpr Family kFamilies[] = {Family::gpt2,    Family::llama, Family::qwen2,
                                       Family::mistral, Family::qwen3, Family::phi3,
                                       Family::gemma2,  Family::gemma3};
// Returns the model_type of config.json, "" for none.
const char* name(Family family);

// A transformer: its sizes, as `--layers --hidden …` give them, and what it is made of.
struct ModelShape {
  std::string name;  // empty if given by its sizes
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // fewer than heads: grouped-query attention
  std::int64_t ffn = 0;       // width between the two (SwiGLU: three) matrices of the MLP
  std::int64_t vocab = 0;
  std::int64_t positions = 0;   // rows of a learned position table; 0: rotary, no parameters
  bool swiglu = false;          // three matrices instead of two
  Biases biases = true;         // which linears have them, and norms a shift
  bool tied = true;             // the output head is the embedding
  double rotary_base = 1e4;     // of rotary positions
  double norm_eps = 1e-5;       // added to the variance in norms
  std::int64_t head_width = 0;  // 0: hidden / heads
  Activation activation = Activation::gelu_tanh;  // of an MLP without gate (not swiglu)
  RotaryScaling rotary_scaling = {};
  // A token sees itself and the window - 1 before it, in layers from window_from on. 0: all.
  std::int64_t window = 0;
  std::int64_t window_from = 0;
  // Every window_period-th layer sees all tokens, whatever the window. 0: no layer does.
  std::int64_t window_period = 0;
  double window_rotary_base = 0;       // of layers with a window, without scaling; 0: as the others
  Activation gate = Activation::silu;  // function of the gate, in an MLP with one (swiglu)
  bool qk_norm = false;        // RMSNorm over each head of queries and keys, before positions
  bool post_norms = false;     // a norm behind attention and one behind the MLP, before the sums
  bool norm_plus_one = false;  // RMSNorm multiplies by 1 + weight
  double embedding_scale = 1;  // factor of the embedding's rows
  double attention_scale = 0;  // factor of attention's scores; 0: 1 / sqrt(head_dim())
  double attention_cap = 0;    // c: scores become c · tanh(score / c); 0: they stay
  double logit_cap = 0;        // the same for logits
  Family family = Family::none;
  std::int64_t context = 0;  // rotary: the longest sequence it is made for; 0: nothing said
  double init_range = 0.02;  // the deviation of matrices at the start
  Lora lora = {};            // [Note: adapters]; what follows counts the model without them

  std::int64_t head_dim() const { return head_width > 0 ? head_width : hidden / heads; }
  std::int64_t q_width() const { return heads * head_dim(); }  // of all queries
  std::int64_t kv_width() const { return kv_heads * head_dim(); }
  bool rotary() const { return positions == 0; }
  // The longest sequence that it can compute; 0: any. A learned table has so many rows; dynamic
  // rotary scaling is the same for all sequences only so far.
  std::int64_t longest() const {
    if (positions > 0) return positions;
    return rotary_scaling.kind == RotaryScaling::Kind::dynamic ? context : 0;
  }
  // Returns the window of a layer's attention; 0: all.
  std::int64_t window_of(std::int64_t layer) const {
    const bool sees_all = window_period > 0 && (layer + 1) % window_period == 0;
    return layer >= window_from && !sees_all ? window : 0;
  }
  // Returns the number of layers with a window.
  std::int64_t window_layers() const;

  // How many keys a query sees, times two, on average over queries and layers: so many as there are
  // tokens, unless there is a window. What attention costs is in proportion.
  double keys_seen(std::int64_t tokens) const;

  // Parameters, all exact.
  std::int64_t layer_params() const;
  std::int64_t block_params() const { return layers * layer_params(); }
  std::int64_t embedding_params() const;   // tokens and positions
  std::int64_t final_norm_params() const;  // before the head
  std::int64_t head_params() const;        // 0 if tied
  std::int64_t params() const;
};

// gpt-tiny, gpt2-124m … gpt2-xl, gpt3-125m … gpt3-175b, llama2-*, llama3-*, llama3.1-*, llama3.2-*,
// qwen2.5-*, mistral-7b.
const std::vector<ModelShape>& model_shapes();
// By one of these names, or as GPT-2's are called elsewhere (gpt2, gpt2-medium, …, gpt2-1558m).
ModelShape find_model_shape(std::string_view name);  // throws UsageError with the near name

// A GPT-2-like shape from its sizes. Throws UsageError naming the size that cannot be.
ModelShape gpt_shape(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                     std::int64_t vocab, std::int64_t positions);
// Throws UsageError that names the size that cannot be.
void check(const ModelShape& shape);

// Why no sequence is longer than shape.longest(), for messages: "the model has 1024 positions".
std::string longest_reason(const ModelShape& shape);

// A note on sequences of so many tokens: longer than the model was made for (its context), though
// it can compute them. "" where there is nothing to say.
std::string context_note(const ModelShape& shape, std::int64_t tokens);

// The vocabulary padded up to a multiple, as Megatron does (of 128 · tp).
std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple);

}  // namespace tessera
