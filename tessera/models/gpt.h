#pragma once

#include "tessera/models/language_model.h"

namespace tessera::models {

// GPT-2: learned positions, pre-norm blocks with LayerNorm and GELU, biases, a head that is tied to
// the embedding. shape.params() counts its parameters.
class GptImpl : public LanguageModel {
 public:
  // Throws UsageError for a shape that is not of this kind (rotary, SwiGLU, untied, no biases).
  explicit GptImpl(const ModelShape& shape, std::uint64_t seed = 0,
                   const nn::ParamOptions& options = {}, const Part& part = {});
};
TORCH_MODULE(Gpt);

// Throws UsageError unless Gpt supports the shape.
void check_gpt_shape(const ModelShape& shape);

}  // namespace tessera::models
