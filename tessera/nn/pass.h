#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::nn {

// [Note: pass] What a forward pass belongs to, for the layers that want to know more than their
// input: which documents the rows hold, and which samples they are. Whoever starts a pass opens a
// PassScope; a recomputed segment opens the same one again; what backward needs is kept by the
// operations themselves. With no scope open a row is one document and nothing is dropped.
struct Pass {
  // int32 [B, T]: the position at which the document of each token begins. Undefined: 0 everywhere.
  // Tokens attend to their own document alone, and learned positions count from its beginning. On
  // the device of the activations.
  at::Tensor document_starts;
  // For kernels that take documents one after another, through all rows: int32 [documents + 1],
  // where each begins and the last ends; and the longest. with_documents() makes them.
  at::Tensor document_bounds;
  std::int64_t longest_document = 0;

  // [Note: dropout] What is dropped depends on the seed, the layer's name, the sample's number and
  // the element in it: not on the mesh, the stage, micro-batches or recomputation.
  double dropout = 0;              // of embeddings and of what is added to the residual stream
  double attention_dropout = 0;    // of attention's probabilities
  double adapter_dropout = 0;      // of what adapters see: [Note: adapters] in core/lora.h
  std::uint64_t seed = 0;          // another in every step
  std::uint64_t first_sample = 0;  // the number of row 0 in its step's global batch
};

std::shared_ptr<const Pass> current_pass();  // null: none

// Fills in what follows from document starts, int32 [B, T] on the host, and puts it on the device.
// Undefined: a row is one document. Throws UsageError for starts that are none: each is 0, that of
// the token before, or the token's own position.
void with_documents(Pass& pass, const at::Tensor& document_starts, c10::Device device);

// What an operation of one layer drops. None: rate 0.
struct Dropout {
  double rate = 0;
  std::uint64_t seed = 0, stream = 0, first_sample = 0;
};
// Of the open pass, for an operation called so in the whole model ("blocks.3.proj").
Dropout dropout_of(const Pass* pass, std::string_view operation);
// The same of Pass::attention_dropout.
Dropout attention_dropout_of(const Pass* pass, std::string_view operation);
// The same of Pass::adapter_dropout.
Dropout adapter_dropout_of(const Pass* pass, std::string_view operation);

// Opens a pass for as long as it lives; then the one before is open again.
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
