#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace tessera::nn {

// [Note: pass] What a forward pass belongs to, for the layers that want to know more than their
// input: which documents the rows hold, and which samples they are. Whoever starts a pass opens a
// PassScope; a recomputed segment opens the same one again; what backward needs is kept by the
// operations themselves. With no scope open a row is one document and nothing is dropped.
struct Pass {
  // int32 [B, T]: the position at which the document of each token begins. Undefined: 0 everywhere.
  // Tokens attend to their own document alone, and learned positions count from its beginning.
  at::Tensor document_starts;

  // [Note: dropout] What is dropped depends on the seed, the layer's name, the sample's number and
  // the element in it: not on the mesh, the stage, micro-batches or recomputation.
  double dropout = 0;              // of embeddings and of what is added to the residual stream
  double attention_dropout = 0;    // of attention's probabilities
  std::uint64_t seed = 0;          // another in every step
  std::uint64_t first_sample = 0;  // the number of row 0 in its step's global batch
};

std::shared_ptr<const Pass> current_pass();  // null: none

class PassScope {
 public:
  explicit PassScope(std::shared_ptr<const Pass> pass);  // on this thread; null: none
  ~PassScope();
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  std::shared_ptr<const Pass> before_;
};

}  // namespace tessera::nn
