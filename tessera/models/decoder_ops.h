#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "tessera/core/model_shape.h"
#include "tessera/nn/ops.h"

namespace tessera::models {

// Token of a text, and its position.
struct DecoderRow {
  std::int64_t slot = 0, position = 0, token = 0;
};
// Weights of a linear layer. The bias is undefined if the model has none.
struct LinearWeights {
  at::Tensor weight, bias;
};
// [Note: striped cache] The tokens of a text are distributed over the ranks in turn: the token at
// position p belongs to rank p % ranks. Each rank keeps its tokens in the order of their positions,
// so those up to a position, or in a window, are consecutive. At every length the numbers of tokens
// of two ranks differ by at most one, and so do the numbers that a token attends to on each.
struct TokenStripes {
  int rank = 0, ranks = 1;

  bool holds(std::int64_t position) const { return position % ranks == rank; }
  // Returns the number of this rank's tokens among the first `tokens` tokens of a text. A token at
  // position `tokens`, if this rank has it, has this index in its cache.
  std::int64_t count(std::int64_t tokens) const { return (tokens + ranks - 1 - rank) / ranks; }
};
// Keys and values of this rank's tokens in a layer: [slots, kv heads, capacity, d].
struct KeyValueCache {
  at::Tensor keys, values;
  TokenStripes stripes = {};
};
// Options of attention, as in ModelShape, except that `scale` is never 0.
struct ScoreOptions {
  std::int64_t window = 0;
  double scale = 1, cap = 0;
};

// Operations of [Note: decoding]. The decoder writes its block once, over this interface.
// Activations are matrices [rows, width]. The result of a function may be in the memory of an
// operand that is passed by value.
class DecoderOps {
 public:
  // Properties of an implementation.
  struct Traits {
    at::ScalarType type = at::kFloat;  // of activations, biases and norms
    std::size_t most_rows = 0;         // maximum rows that run together
    std::size_t most_together = 1;     // maximum rows of a text that runs together with others
    bool zeroed_cache = false;         // the cache must not contain infinities or NaN at first
  };
  virtual ~DecoderOps() = default;
  const Traits traits;

  // Sets the rows of the following calls, whose activations have a row for each: consecutive rows
  // of one text, or of several texts with at most `most_together` rows each.
  virtual void begin(std::span<const DecoderRow> rows) = 0;

  // Returns the tokens' rows of a table whose first row is token `first`, 0 for tokens that are not
  // in it. Adds the rows of their positions in `positions`, if defined.
  virtual at::Tensor embed(const at::Tensor& table, std::int64_t first,
                           const at::Tensor& positions) = 0;
  virtual at::Tensor norm(const at::Tensor& x, const nn::NormWeights& weights) = 0;
  // Returns x · wᵀ + b.
  virtual at::Tensor linear(const at::Tensor& x, const LinearWeights& weights) = 0;
  // Returns sum + x · wᵀ + b.
  virtual at::Tensor add_linear(at::Tensor sum, const at::Tensor& x,
                                const LinearWeights& weights) = 0;
  // Returns x · wᵀ in fp32, for a matrix in fp32.
  virtual at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight) = 0;
  // Normalizes heads [first, first + count) of each row in place.
  virtual void norm_heads(const at::Tensor& qkv, std::int64_t first, std::int64_t count,
                          const nn::NormWeights& weights) = 0;
  // Applies rotary positions to the first `heads` heads of each row in place. `table`: cosines,
  // then sines of each position, multiplied by the gain, fp32 [tokens, d].
  virtual void rotate(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& table) = 0;
  // Writes the keys and values of the rows that this rank holds into the cache.
  virtual void remember(const at::Tensor& qkv, const KeyValueCache& cache) = 0;
  // Returns [rows, heads · d]: the attention of each row to its text, up to its position. The cache
  // has all tokens. `qkv` begins with the queries.
  virtual at::Tensor attend(const at::Tensor& qkv, const KeyValueCache& cache,
                            const ScoreOptions& options) = 0;
  // Returns the attention of other rows than those of begin(), of one text or of several with one
  // row each, to the tokens of this rank: [rows, heads · d + heads] in fp32. The last columns are
  // the log-sum-exp of the scores, -infinity for a row that sees no token here.
  virtual at::Tensor attend_part(std::span<const DecoderRow> rows, const at::Tensor& queries,
                                 const KeyValueCache& cache, const ScoreOptions& options) = 0;
  // Combines the parts of all ranks, [ranks, rows, heads · d + heads]: [rows, heads · d].
  virtual at::Tensor merge(const at::Tensor& parts, std::int64_t heads) = 0;
  // Returns f(x), or with a gate f(first half of the columns) · second half.
  virtual at::Tensor activate(at::Tensor x, Activation f, bool gated) = 0;
  // Returns the sigmoid of each element in fp32.
  virtual at::Tensor sigmoid(const at::Tensor& x) = 0;
  // Returns cap · tanh(logits / cap). Logits are fp32, on the CPU.
  virtual at::Tensor capped(at::Tensor logits, double cap) = 0;

 protected:
  explicit DecoderOps(const Traits& traits) : traits(traits) {}
};

// Tessera's kernels, on the CPU.
std::unique_ptr<DecoderOps> make_kernel_ops();
// ATen's operations, on any device. `type`: of matrices and activations.
std::unique_ptr<DecoderOps> make_aten_ops(at::ScalarType type, c10::Device device);

}  // namespace tessera::models
