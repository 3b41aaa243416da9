#pragma once

#include "tessera/models/language_model.h"

namespace tessera::models {

// GPT-2: learned positions, blocks with LayerNorm first and GELU, biases, the embedding as the
// head. Its parameters are counted by shape.params().
class GptImpl : public LanguageModel {
 public:
  // Throws UsageError for a shape that is not of this kind (rotary, SwiGLU, untied, no biases).
  explicit GptImpl(const ModelShape& shape, std::uint64_t seed = 0,
                   const nn::ParamOptions& options = {}, const Part& part = {});
};
TORCH_MODULE(Gpt);

// Throws UsageError unless Gpt can be built with it.
void check_gpt_shape(const ModelShape& shape);

}  // namespace tessera::models
