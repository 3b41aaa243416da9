#include "tessera/models/gpt.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::models {

void check_gpt_shape(const ModelShape& shape) {
  check(shape);
  if (shape.positions < 1 || shape.swiglu || shape.biases != Biases(true) || !shape.tied ||
      shape.kv_heads != shape.heads || shape.window != 0 || shape.head_width != 0 ||
      shape.activation != Activation::gelu_tanh || shape.qk_norm || shape.post_norms ||
      shape.embedding_scale != 1 || shape.attention_scale > 0 || shape.attention_cap > 0 ||
      shape.logit_cap > 0) {
    throw UsageError(str("model ", quote(shape.name),
                         " is not like GPT-2; must have learned positions, an MLP of two matrices, "
                         "biases, a tied head and as many kv-heads as heads"));
  }
}

GptImpl::GptImpl(const ModelShape& shape, std::uint64_t seed, const nn::ParamOptions& options,
                 const Part& part)
    : LanguageModel((check_gpt_shape(shape), shape), seed, options, part) {}

}  // namespace tessera::models
