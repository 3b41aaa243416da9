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
// Keys and values of a layer: [slots, kv heads, capacity, d].
struct KeyValueCache {
  at::Tensor keys, values;
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
  // Writes the keys and values of the rows into the cache. Returns [rows, heads · d]: the attention
  // of each row to its text, up to its position.
  virtual at::Tensor attend(const at::Tensor& qkv, const KeyValueCache& cache,
                            const ScoreOptions& options) = 0;
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
