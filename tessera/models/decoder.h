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

// Fills what tensor-parallel rank t of tp has of a parameter of layers_of(), in the type of `into`,
// which is on the CPU. Padding becomes 0.
using ReadParam = std::function<void(const ParamSpec& spec, const at::Tensor& into,
                                     const Axes& axes, const Coordinate& coordinate)>;

struct DecoderOptions {
  at::ScalarType type = at::kFloat;  // of matrices and of the cache: float or bfloat16
  c10::Device device = c10::kCPU;
  std::int64_t slots = 1;     // texts that are written side by side
  std::int64_t capacity = 0;  // tokens of each, at most; 0: ModelShape::longest(), or 2048
  comm::Group tp = {};        // ranks that share the model: [Note: decoding on ranks]
};

// [Note: decoding] A model that reads texts and continues them, a token at a time: what attention
// has to know of earlier tokens, their keys and values, is kept in a cache, a slot for each text.
// Nothing is recorded for gradients. On the CPU all but matrices and the cache is fp32, and a
// text's numbers have the same bits whatever is written beside it.
//
// [Note: decoding on ranks] Of several tensor-parallel ranks each has its heads and what the cache
// has of them, its part of the MLP and its rows of the vocabulary. The first is asked, as if it
// were alone, and tells the others what to compute, which these do in follow() until its finish().
// So prompts, what is drawn, and when a text ends are the first rank's affair. Sums are made in
// rank order, so here too a text does not depend on those beside it; the bits are others than those
// of one process.
class Decoder {
 public:
  virtual ~Decoder() = default;

  // Forgets what was in the slot and reads a text. Returns the logits behind its last token, fp32
  // [V], or, with `all`, behind each, [T, V]. On the CPU, as all logits here; they are good until
  // the next call.
  at::Tensor read(std::int64_t slot, std::span<const std::int64_t> tokens, bool all = false);
  // The same of several texts, into as many slots, all different: logits behind the last token of
  // each, [texts, V]. Short ones go through the model together, which reads its matrices once.
  at::Tensor read_each(std::span<const std::int64_t> slots,
                       std::span<const std::vector<std::int64_t>> texts);
  // One more token for each of these slots, all different: logits behind them, [slots, V].
  at::Tensor step(std::span<const std::int64_t> slots, std::span<const std::int64_t> tokens);

  // In place of all that by the ranks behind the first: computes along until that one ends it.
  void follow();
  // By the first rank, when nothing more will be asked. Alone it does nothing.
  void finish();

  std::int64_t length(std::int64_t slot) const;  // tokens in it
  const ModelShape& shape() const { return shape_; }
  const DecoderOptions& options() const { return options_; }

 protected:
  // A token of a text, and where in it.
  struct Row {
    std::int64_t slot = 0, position = 0, token = 0;
  };
  Decoder(const ModelShape& shape, const DecoderOptions& options);
  // Through the model: rows of one slot in a row, or one of each. Logits of the last row or all.
  virtual at::Tensor run(std::span<const Row> rows, bool last_only) = 0;
  // Rows of several texts, one text after the other, `ends` being one past the last row of each:
  // the logits of these last rows go to `logits`, [texts, V]. By run(), unless there is more to it.
  virtual void run_texts(std::span<const Row> rows, std::span<const std::size_t> ends,
                         const at::Tensor& logits);

  bool alone() const { return options_.tp.size() == 1; }
  // What the ranks have made of the same thing, added up, in place; contiguous.
  at::Tensor summed(const at::Tensor& partial) const;
  // From this rank's columns of the vocabulary, [rows, columns], all, [rows, V].
  at::Tensor gathered(const at::Tensor& own) const;

  const ModelShape shape_;
  const ModelShape part_;         // heads, kv-heads and ffn of this rank alone
  const DecoderOptions options_;  // settled

 private:
  // What the first rank asks of the others.
  enum class Order : std::int64_t { rows, last_row, texts, end };
  void tell(Order order, std::span<const std::size_t> ends = {}) const;
  void check_slot(std::int64_t slot) const;
  void check_slots(std::span<const std::int64_t> slots) const;  // and that none comes twice
  Row next(std::int64_t slot, std::int64_t token);

  std::vector<std::int64_t> lengths_;
  std::vector<Row> rows_;
};

// Throws UsageError for a shape that is no model of ours, or a capacity beyond its positions.
std::unique_ptr<Decoder> make_decoder(const ModelShape& shape, const DecoderOptions& options,
                                      const ReadParam& read);
// From ATen's operations alone, on any device: what a GPU runs, and a slow reference for the CPU.
std::unique_ptr<Decoder> make_plain_decoder(const ModelShape& shape, const DecoderOptions& options,
                                            const ReadParam& read);

// For the implementations.
struct BlockWeights {
  at::Tensor norm1, norm1_bias, qkv, qkv_bias, proj, proj_bias;
  at::Tensor norm2, norm2_bias, fc, fc_bias, proj2, proj2_bias;
  at::Tensor q_norm, k_norm, post_norm1, post_norm2;  // all but matrices: undefined where none is
};
struct DecoderWeights {
  at::Tensor tok, pos, norm, norm_bias, head;  // head: tok where tied
  std::vector<BlockWeights> blocks;
};
// This rank's: matrices of the options' type, all else of type `vectors`. Norms have what they
// multiply by, which is fp32 where the model adds 1 to it.
DecoderWeights read_weights(const ModelShape& shape, const DecoderOptions& options,
                            at::ScalarType vectors, const ReadParam& read);
// Angles of rotary positions: cos and sin, fp32 [tokens, d / 2], with the gain.
struct RotaryTable {
  at::Tensor cos, sin;
};
// `windowed`: of layers with a window, where these have a base of their own.
RotaryTable rotary_table(const ModelShape& shape, std::int64_t tokens, bool windowed = false);

}  // namespace tessera::models
