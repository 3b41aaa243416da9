#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"

namespace tessera::models {

// Reads the shard of a parameter of layers_of() for the rank at `coordinate` into `into`, which is
// on the CPU, in its type. Padding becomes 0.
using ReadParam = std::function<void(const ParamSpec& spec, const at::Tensor& into,
                                     const Axes& axes, const Coordinate& coordinate)>;

// Options of a decoder.
struct DecoderOptions {
  at::ScalarType type = at::kFloat;  // of matrices and of the cache: float or bfloat16
  c10::Device device = c10::kCPU;
  std::int64_t slots = 1;     // number of texts that are decoded concurrently
  std::int64_t capacity = 0;  // maximum tokens of a text; 0: ModelShape::longest(), or 2048
  comm::Group tp = {};        // ranks that share the model: [Note: decoding on ranks]
};

// Model that reads texts and continues them, a token at a time.
//
// [Note: decoding] The keys and values of earlier tokens are kept in a cache, which has a slot for
// each text. Nothing is recorded for gradients. On the CPU everything except matrices and the cache
// is fp32, and the numbers of a text are bitwise independent of other texts in the batch.
//
// [Note: decoding on ranks] Each tensor-parallel rank has some of the heads and their part of the
// cache, its part of the MLP and its rows of the vocabulary. Callers use only the first rank, as if
// it were alone. It sends the work to the other ranks, which compute in follow() until finish() is
// called on the first. So only the first rank handles prompts, sampling and the ends of texts. Sums
// are made in rank order, so here too a text does not depend on others; its bits differ from those
// of one process.
class Decoder {
 public:
  virtual ~Decoder() = default;

  // Clears the slot and reads a text. Returns the logits after its last token, fp32 [V], or, with
  // `all`, after each token, [T, V]. All logits are on the CPU and valid until the next call.
  at::Tensor read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all = false);
  // Reads several texts into as many different slots. Returns the logits after the last token of
  // each, [texts, V]. Short texts run through the model together, which reads its matrices once.
  at::Tensor read_each(std::span<const std::int64_t> slots,
                       std::span<const std::vector<std::int64_t>> texts);
  // Appends one token to each of these different slots. Returns the logits after them, [slots, V].
  at::Tensor step(std::span<const std::int64_t> slots, std::span<const std::int64_t> tokens);

  // Called on all ranks but the first, instead of the above: takes part in the computations until
  // finish() is called on the first.
  void follow();
  // Called on the first rank after its last call. Does nothing with one rank.
  void finish();

  std::int64_t length(std::int64_t slot) const;  // number of tokens in the slot
  const ModelShape& shape() const { return shape_; }
  const DecoderOptions& options() const { return options_; }

 protected:
  // Token of a text, and its position.
  struct Row {
    std::int64_t slot = 0, position = 0, token = 0;
  };
  Decoder(const ModelShape& shape, const DecoderOptions& options);
  // Runs rows through the model: consecutive rows of one slot, or one row of each slot. Returns the
  // logits of the last row or of all.
  virtual at::Tensor run(std::span<const Row> rows, bool last_only) = 0;
  // Runs rows of several texts, one text after the other. `ends`: one past the last row of each.
  // Writes the logits of the last rows to `logits`, [texts, V]. The default calls run().
  virtual void run_texts(std::span<const Row> rows, std::span<const std::size_t> ends,
                         const at::Tensor& logits);

  bool alone() const { return options_.tp.size() == 1; }
  // Sums the partial results of all ranks, in place. `partial` must be contiguous.
  at::Tensor summed(const at::Tensor& partial) const;
  // Gathers the columns of the vocabulary of all ranks: [rows, columns] to [rows, V].
  at::Tensor gathered(const at::Tensor& own) const;

  const ModelShape shape_;
  const ModelShape part_;         // with heads, kv-heads and ffn of this rank only
  const DecoderOptions options_;  // with defaults filled in

 private:
  // Command of the first rank to the others.
  enum class Order : std::int64_t { rows, last_row, texts, end };
  void tell(Order order, std::span<const std::size_t> ends = {}) const;
  void check_slot(std::int64_t slot) const;
  void check_slots(std::span<const std::int64_t> slots) const;  // also that they are different
  Row next(std::int64_t slot, std::int64_t token);

  std::vector<std::int64_t> lengths_;
  std::vector<Row> rows_;
};

// Makes the fastest decoder for the device. Throws UsageError for a shape that no model here has,
// or a capacity beyond its positions.
std::unique_ptr<Decoder> make_decoder(const ModelShape& shape, const DecoderOptions& options,
                                      const ReadParam& read);
// Makes a decoder that uses only ATen's operations, on any device: GPUs use it, and it is a slow
// reference for the CPU.
std::unique_ptr<Decoder> make_plain_decoder(const ModelShape& shape, const DecoderOptions& options,
                                            const ReadParam& read);

// The following is for the implementations.

// Weights of a block. Members other than matrices are undefined if the model does not have them.
struct BlockWeights {
  at::Tensor norm1, norm1_bias, qkv, qkv_bias, proj, proj_bias;
  at::Tensor norm2, norm2_bias, fc, fc_bias, proj2, proj2_bias;
  at::Tensor q_norm, k_norm, post_norm1, post_norm2;
};
// Weights of a model.
struct DecoderWeights {
  at::Tensor tok, pos, norm, norm_bias, head;  // head: same as tok if tied
  std::vector<BlockWeights> blocks;
};
// Reads the weights of this rank: matrices in the type of the options, all others in the type
// `vectors`. Norms contain their factor, which is fp32 if the model adds 1 to the weight.
DecoderWeights read_weights(const ModelShape& shape, const DecoderOptions& options,
                            at::ScalarType vectors, const ReadParam& read);
// Angles of rotary positions: cos and sin, fp32 [tokens, d / 2], multiplied by the gain.
struct RotaryTable {
  at::Tensor cos, sin;
};
// Computes the angles. `windowed`: for layers with a window, which may have their own base.
RotaryTable rotary_table(const ModelShape& shape, std::int64_t tokens, bool windowed = false);

}  // namespace tessera::models
