#include "tessera/planner/activations.h"

#include <array>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::planner {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"none", "selective", "full"};
constexpr std::int64_t kRandomState = 5056;  // of the generator, kept by a recomputed segment

// The ledger counts whole lines of 64 bytes.
constexpr std::int64_t tensor(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// [Note: what a block keeps] With N = batch · seq rows of C = hidden values:
//   x → norm → y → qkv → attention → a → out → x + out = s → norm → z → up, GELU → g → down → s + d
// none: x, y, qkv, a, s, z, the product before GELU, g; two fp32 numbers per row for each norm and
// one per row and head for the softmax. selective: x, the products (qkv, the attention's result and
// its fp32 numbers, out, up before GELU, down). full: x.
std::int64_t block_bytes(const GptActivations& q) {
  const std::int64_t rows = q.batch * q.seq;
  const std::int64_t stream = tensor(rows * q.model.hidden * q.element);
  const std::int64_t qkv = tensor(3 * rows * q.model.hidden * q.element);
  const std::int64_t wide = tensor(rows * q.model.ffn * q.element);
  const std::int64_t norm = 2 * tensor(4 * rows);
  const std::int64_t softmax = tensor(4 * rows * q.model.heads);
  switch (q.recompute) {
    case Recompute::none: return 5 * stream + qkv + 2 * wide + 2 * norm + softmax;
    case Recompute::selective: return 4 * stream + qkv + wide + softmax + kRandomState;
    case Recompute::full: return stream + kRandomState;
  }
  return 0;
}

}  // namespace

Recompute parse_recompute(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<Recompute>(i);
  }
  const std::vector<std::string> names(kNames.begin(), kNames.end());
  throw UsageError(str("recomputation ", quote(text), " is unknown", did_you_mean(text, names),
                       "; there are ", join(names, ", ")));
}

std::string_view name(Recompute mode) { return kNames[static_cast<std::size_t>(mode)]; }

std::int64_t gpt_activation_bytes(const GptActivations& q) {
  const std::int64_t rows = q.batch * q.seq;
  const std::int64_t stream = tensor(rows * q.model.hidden * q.element);
  // After the blocks: the last sum, the norm and its result, and the gradient of the logits.
  const std::int64_t head =
      2 * stream + 2 * tensor(4 * rows) + tensor(rows * q.model.vocab * q.element) + 64;
  return q.model.layers * block_bytes(q) + head;
}

}  // namespace tessera::planner
