#pragma once

#include "tessera/models/language_model.h"

namespace tessera::models {

// Llama and similar models (Qwen2, Mistral): rotary positions, pre-norm blocks with RMSNorm and
// SwiGLU, grouped queries if there are fewer kv-heads, biases and windows if the shape has them, a
// separate or a tied head. fc.weight has the rows of the gate, then those of the values.
class LlamaImpl : public LanguageModel {
 public:
  explicit LlamaImpl(const ModelShape& shape, std::uint64_t seed = 0,
                     const nn::ParamOptions& options = {}, const Part& part = {});
};
TORCH_MODULE(Llama);

// Throws UsageError unless Llama supports the shape.
void check_llama_shape(const ModelShape& shape);
bool is_llama(const ModelShape& shape);

}  // namespace tessera::models
