#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tessera/core/sequence_part.h"
#include "tessera/nn/pass.h"
#include "tessera/parallel/parallelize.h"

namespace tessera::parallel {

// Tokens of each row that a rank has: [Note: context layers].
struct RankTokens {
  SequencePart part = {};
  int shards = 1;  // ranks that shard the tokens of a part between the layers
};

// Returns the tokens of whole rows that this rank counts: the first part counts all of them.
inline std::optional<double> counted_tokens(std::optional<double> tokens, const RankTokens& here) {
  return tokens && here.part.index > 0 ? 0 : tokens;
}

// Returns the tensors that the first layer takes.
std::vector<at::Tensor> inputs_of(const MicroBatch& batch);
// Copies a micro-batch to the device. The host does not wait if it is in pinned memory.
MicroBatch on_device(const MicroBatch& batch, c10::Device device);
// Returns a micro-batch with this rank's tokens, padded. Throws UsageError unless inputs and
// targets are [batch, tokens, …] of equal length, and targets that need padding are integers.
MicroBatch tokens_of(const MicroBatch& batch, const RankTokens& here);
// Returns the context of a forward pass of a micro-batch with whole rows, without dropout. Null if
// layers need none.
std::shared_ptr<nn::Pass> pass_for(const MicroBatch& batch, const RankTokens& here,
                                   c10::Device device);

// Returns 1 / rows of a step of this number of micro-batches, all like this one. Throws UsageError
// if this rank has none of its tensors: losses of layers are means over all rows.
double row_weight(const MicroBatch& batch, std::size_t micros, const Axes& axes);

// Returns the context of an evaluation: that of the micro-batch, or the one that is open. Throws
// UsageError if the open one has documents, which cannot be cut.
std::shared_ptr<const nn::Pass> evaluation_pass(const MicroBatch& batch, const RankTokens& here,
                                                c10::Device device);
// Throws UsageError if the length of whole rows, which numbers the probabilities of attention for
// dropout, is not known.
void expect_numbered_rows(const nn::Pass& pass);

}  // namespace tessera::parallel
