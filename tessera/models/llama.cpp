#include "tessera/models/llama.h"

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::models {

void check_llama_shape(const ModelShape& shape) {
  check(shape);
  if (!is_llama(shape)) {
    throw UsageError(str("model ", quote(shape.name),
                         " is not like Llama; must have rotary positions (positions 0), SwiGLU and "
                         "RMSNorm"));
  }
}

bool is_llama(const ModelShape& shape) {
  return shape.rotary() && shape.swiglu && !shape.biases.norm;
}

LlamaImpl::LlamaImpl(const ModelShape& shape, std::uint64_t seed, const nn::ParamOptions& options,
                     const Part& part)
    : LanguageModel((check_llama_shape(shape), shape), seed, options, part) {}

}  // namespace tessera::models
