#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// The sizes of a transformer, as `--layers --hidden …` give them.
struct ModelShape {
  std::string name;  // empty if given by its sizes
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // fewer than heads: grouped-query attention
  std::int64_t ffn = 0;       // width between the two (SwiGLU: three) matrices of the MLP
  std::int64_t vocab = 0;
  std::int64_t positions = 0;  // rows of a learned position table; 0: rotary, no parameters
  bool swiglu = false;         // three matrices instead of two
  bool biases = true;          // linears have biases, and norms have a shift
  bool tied = true;            // the output head is the embedding
  double rotary_base = 1e4;    // of rotary positions
  double norm_eps = 1e-5;      // added to the variance in norms

  std::int64_t head_dim() const { return hidden / heads; }

  // Parameters, all exact.
  std::int64_t layer_params() const;
  std::int64_t block_params() const { return layers * layer_params(); }
  std::int64_t embedding_params() const;   // tokens and positions
  std::int64_t final_norm_params() const;  // before the head
  std::int64_t head_params() const;        // 0 if tied
  std::int64_t params() const;
};

// gpt-tiny, gpt2-124m … gpt2-xl, gpt3-125m … gpt3-175b, llama2-*, llama3-*, llama3.1-405b.
const std::vector<ModelShape>& model_shapes();
ModelShape find_model_shape(std::string_view name);  // throws UsageError with the near name

// A GPT-2-like shape from its sizes. Throws UsageError naming the size that cannot be.
ModelShape gpt_shape(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                     std::int64_t vocab, std::int64_t positions);
void check(const ModelShape& shape);

// The vocabulary padded up to a multiple, as Megatron does (of 128 · tp).
std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple);

}  // namespace tessera
