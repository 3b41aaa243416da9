#pragma once

#include "tessera/models/language_model.h"

namespace tessera::models {

// Llama and its kin (Qwen2, Mistral): rotary positions, blocks with RMSNorm first and SwiGLU,
// grouped queries if there are fewer kv-heads, biases and windows where the shape has them, a head
// of its own unless it is tied. fc.weight has the rows of the gate, then those of the values.
class LlamaImpl : public LanguageModel {
 public:
  explicit LlamaImpl(const ModelShape& shape, std::uint64_t seed = 0,
                     const nn::ParamOptions& options = {}, const Part& part = {});
};
TORCH_MODULE(Llama);

// Throws UsageError unless Llama can be built with it.
void check_llama_shape(const ModelShape& shape);
bool is_llama(const ModelShape& shape);

}  // namespace tessera::models
