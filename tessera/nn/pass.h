#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/core/sequence_part.h"

namespace tessera::nn {

// [Note: pass] Context of a forward pass, for layers that need more than their input: the documents
// that the rows contain, and the numbers of their samples. The code that starts a pass opens a
// PassScope, and a recomputed segment opens the same one again. Operations save what their backward
// needs themselves. Without an open scope, each row is one document and nothing is dropped.
struct Pass {
  // Tokens of the rows that this rank has: [Note: zig-zag].
  SequencePart part;
  // Number of tokens of whole rows, without padding. 0: that of the tensors.
  std::int64_t row_tokens = 0;
  // int32 [B, T] for whole rows: position at which the document of each token begins. Undefined: 0
  // everywhere. Tokens attend only to their own document, and learned positions count from its
  // beginning. On the device of the activations.
  at::Tensor document_starts;
  // For kernels that process documents one after another, through all rows: int32 [documents + 1],
  // the start of each document and the end of the last; and the longest length. Set by
  // with_documents().
  at::Tensor document_bounds;
  std::int64_t longest_document = 0;

  // [Note: dropout] The dropped values depend on the seed, the layer's name, the sample's number
  // and the element in it: not on the mesh, the pipeline stage, micro-batches or recomputation.
  double dropout = 0;              // for embeddings and for values added to the residual stream
  double attention_dropout = 0;    // for attention probabilities
  double adapter_dropout = 0;      // for the inputs of adapters: [Note: adapters] in core/lora.h
  std::uint64_t seed = 0;          // different in every step
  std::uint64_t first_sample = 0;  // number of row 0 in the global batch of its step

  // [Note: auxiliary losses] Losses that layers inside the model add to that of the last layer. A
  // layer returns its result through with_auxiliary_loss(), whose backward adds the gradient. So
  // no pipeline stage passes losses on.
  double row_weight = 0;       // 1 / rows of the global batch; 0: auxiliary losses have no gradient
  at::Tensor loss_scale = {};  // factor of all gradients of a step; undefined: 1
};

std::shared_ptr<const Pass> current_pass();  // null if no pass is open

// Sets the document fields from document starts, int32 [B, T] on the host, and copies them to the
// device. Undefined starts: each row is one document. Throws UsageError for invalid starts: each
// must equal that of the previous token (0 for the first) or the token's own position.
void with_documents(Pass& pass, const at::Tensor& document_starts, c10::Device device);

// Returns x. In backward, `loss` gets the gradient row_weight · loss_scale of the pass. `loss` is
// one number: the sum over the rows of this rank.
at::Tensor with_auxiliary_loss(const at::Tensor& x, const at::Tensor& loss, const Pass& pass);

// Throws UsageError if the current pass gives this rank a part of the rows: `operation` treats the
// tokens here as whole rows, and `instead` does not.
void expect_whole_rows(const char* operation, const char* instead);

// Returns the tokens of a part, along dim 1 of a tensor of whole rows [B, T, …], contiguous. T must
// be a multiple of the number of chunks.
at::Tensor tokens_of(const SequencePart& part, const at::Tensor& rows);
// Returns the positions of the `tokens` tokens of a part: [tokens], of this type on this device.
at::Tensor positions_of(const SequencePart& part, std::int64_t tokens,
                        const at::TensorOptions& options);

// Dropout of one operation of a layer. Rate 0 disables it.
struct Dropout {
  double rate = 0;
  std::uint64_t seed = 0, stream = 0, first_sample = 0;
  SequencePart part = {};  // of the rows, as in Pass

  // Returns the positions of rows [first, first + count) of `tokens` rows of the part.
  std::vector<TokenRange> rows(std::int64_t first, std::int64_t count, std::int64_t tokens) const {
    std::vector<TokenRange> ranges = part.ranges(first, count, tokens);
    for (TokenRange& range : ranges) range.local -= first;
    return ranges;
  }
};
// Returns the dropout of a pass for an operation, by its name in the whole model ("blocks.3.proj").
Dropout dropout_of(const Pass* pass, std::string_view operation);
// Same for Pass::attention_dropout.
Dropout attention_dropout_of(const Pass* pass, std::string_view operation);
// Same for Pass::adapter_dropout.
Dropout adapter_dropout_of(const Pass* pass, std::string_view operation);

// Opens a pass while it lives, then restores the previous one.
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
