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
#include "tessera/models/decoder_ops.h"

namespace tessera::models {

// Reads the shard of a parameter or a buffer of layers_of() for the rank at `coordinate` into
// `into`, which is on the CPU, in its type. Padding becomes 0.
using ReadParam = std::function<void(const ParamSpec& spec, const at::Tensor& into,
                                     const Axes& axes, const Coordinate& coordinate)>;

// Options of a decoder.
struct DecoderOptions {
  at::ScalarType type = at::kFloat;  // of matrices and of the cache: float or bfloat16
  c10::Device device = c10::kCPU;
  std::int64_t slots = 1;     // number of texts that are decoded concurrently
  std::int64_t capacity = 0;  // maximum tokens of a text; 0: ModelShape::longest(), or 2048
  comm::Group tp = {};        // ranks that share the model: [Note: decoding on ranks]
  comm::Group cp = {};        // ranks that share the tokens of each text
};

// Model that reads texts and continues them, a token at a time.
//
// [Note: decoding] The keys and values of earlier tokens are kept in a cache, which has a slot for
// each text. Nothing is recorded for gradients. The block is written once, in decoder.cpp, over the
// operations of DecoderOps. On the CPU everything except matrices and the cache is fp32, and the
// numbers of a text are bitwise independent of other texts in the batch.
//
// [Note: decoding with experts] The router computes in fp32, from weights in fp32, and selects as
// in training, but no row is dropped: Experts::capacity has no effect. Each expert multiplies the
// rows of all texts that selected it at once, so its matrices are read once per call. A row sums
// its experts in the order of their numbers. On a GPU the host waits for the numbers in each layer.
//
// [Note: decoding on ranks] Each tensor-parallel rank has some of the heads and their part of the
// cache, its part of the MLP and its rows of the vocabulary. Callers use only the first rank, as if
// it were alone. It sends the work to the other ranks, which compute in follow() until finish() is
// called on the first. So only the first rank handles prompts, sampling and the ends of texts. Sums
// are made in rank order, so here too a text does not depend on others; its bits differ from those
// of one process.
//
// [Note: decoding along cp] Context-parallel ranks have the same weights, and each keeps the keys
// and values of 1 / ranks of the tokens of every text: [Note: striped cache]. A query attends to
// the tokens of each rank there, and the results are merged by their log-sum-exp ([Note: context
// parallelism]). So queries and results travel, and the cache stays where it is: a prompt costs the
// same per token at any length, which keys and values that pass through a ring would not.
// A long prompt is read in chunks, and each rank computes the rows of its own tokens. For N rows of
// a chunk per rank, h heads of width d and e bytes per activation, each rank sends per layer
//   (ranks - 1) · N · h · d · e bytes of queries (all-gather), and
//   (ranks - 1) · N · h · (d + 1) · 4 bytes of results (all-to-all).
// If ranks have unequal numbers of rows, copies of the chunk's last row fill up the others.
// All ranks compute all rows of short texts and of steps, because few rows take as long as one.
// They gather results, (ranks - 1) · N · h · (d + 1) · 4 bytes for N rows.
class Decoder {
 public:
  // Use make_decoder() instead.
  Decoder(const ModelShape& shape, const DecoderOptions& options, std::unique_ptr<DecoderOps> ops,
          const ReadParam& read);

  // Clears the slot and reads a text. Returns the logits after its last token, fp32 [V], or, with
  // `all`, after each token, [T, V]. All logits are on the CPU.
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

 private:
  using Row = DecoderRow;
  struct Mlp {
    LinearWeights fc, proj2;
  };
  // Weights of a layer with experts. `shared` and `shared_gate` may be undefined.
  struct ExpertLayer {
    at::Tensor router, selection_bias;
    std::vector<Mlp> experts;
    Mlp shared;
    LinearWeights shared_gate;
  };
  // Weights of a block and its cache. Norms that the model does not have are undefined, and either
  // the MLP or the experts.
  struct Block {
    std::int64_t window;  // 0: unlimited
    nn::NormWeights norm1;
    LinearWeights qkv;
    nn::NormWeights q_norm, k_norm;
    KeyValueCache cache;
    LinearWeights proj;
    nn::NormWeights post_norm1, norm2;
    Mlp mlp;
    ExpertLayer experts;
    nn::NormWeights post_norm2;
  };
  // Command of the first rank to the others: to return the logits of these rows, or to end.
  enum class Order : std::int64_t { all_rows, last_rows, end };

  bool first() const { return options_.tp.rank() == 0 && options_.cp.rank() == 0; }
  // Sends a tensor of the first rank to all ranks.
  void broadcast(const at::Tensor& x) const;
  void check_slot(std::int64_t slot) const;
  // Starts a call for these slots, which must be different.
  void begin_call(std::span<const std::int64_t> slots);
  void extend(std::int64_t slot, std::span<const std::int64_t> tokens);
  void replace(std::int64_t slot, std::span<const std::int64_t> tokens);
  void tell(Order order) const;
  at::Tensor run_on_ranks(Order order);
  // Runs the rows of the call. Returns the logits of all rows, or of the last row of each text.
  at::Tensor run(Order order);
  at::Tensor hidden(std::span<const Row> rows);
  at::Tensor hidden_of_text(std::span<const Row> rows, bool wanted);
  at::Tensor attend(const at::Tensor& qkv, const KeyValueCache& cache, const ScoreOptions& options);
  at::Tensor run_block(const Block& block, at::Tensor x);
  at::Tensor wide(const at::Tensor& x, const LinearWeights& fc);
  at::Tensor run_experts(const ExpertLayer& layer, const at::Tensor& x);
  at::Tensor own_linear(const at::Tensor& x, const LinearWeights& last);
  at::Tensor add_branch(at::Tensor x, const at::Tensor& own, const nn::NormWeights& post_norm);
  at::Tensor end_branch(at::Tensor x, const at::Tensor& inner, const LinearWeights& last,
                        const nn::NormWeights& post_norm);
  at::Tensor logits_of(const at::Tensor& x);
  // Sums the partial results of all ranks, in place.
  at::Tensor summed(const at::Tensor& partial) const;
  // Gathers the columns of the vocabulary of all ranks: [rows, columns] to [rows, V].
  at::Tensor gathered(const at::Tensor& own) const;

  const ModelShape shape_;
  const ModelShape part_;         // with heads, kv-heads and ffn of this rank only
  const DecoderOptions options_;  // with defaults filled in
  const std::unique_ptr<DecoderOps> ops_;
  const double embedding_scale_;
  at::Tensor tok_, pos_;
  std::vector<Block> blocks_;
  nn::NormWeights norm_;
  LinearWeights head_;
  at::Tensor rotary_[2];               // tables of layers without a window, and with one
  std::vector<std::int64_t> lengths_;  // of the texts in the slots
  // The current call: rows of its texts, one text after the other, and one past the last of each.
  std::vector<Row> rows_;
  std::vector<std::size_t> ends_;
  // Rows that run through the model now: this rank's, and those of all context-parallel ranks, one
  // rank after the other, if each computes its own. Otherwise `cut_rows_` is empty.
  std::span<const Row> current_;
  std::vector<Row> cut_rows_;
};

// Makes the fastest decoder for the device. Throws UsageError for a shape that no model here has,
// or a capacity beyond its positions.
std::unique_ptr<Decoder> make_decoder(const ModelShape& shape, const DecoderOptions& options,
                                      const ReadParam& read);
// Makes a decoder that uses only ATen's operations, on any device: GPUs use it, and it is a slow
// reference for the CPU.
std::unique_ptr<Decoder> make_plain_decoder(const ModelShape& shape, const DecoderOptions& options,
                                            const ReadParam& read);

}  // namespace tessera::models
