#include "tessera/planner/whole_matrices.h"

#include <algorithm>

#include "tessera/core/shard.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/run_parts.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kFp32 = 4;

bool in_shards(const RunQuestion& q) {
  return sharding_of_stage(q.stage).optimizer && q.shards() > 1;
}

// Beside the matrix itself: x and the next x, its Gram matrix and the polynomial of that. On a GPU
// in bf16, into which it is cast at first, and back at last.
std::int64_t orthogonalising_bytes(const RunQuestion& q, const HiddenMatrix& matrix) {
  const std::int64_t x = matrix.elements, gram = matrix.smaller_side * matrix.smaller_side;
  if (!q.gpu) return kFp32 * (2 * x + 2 * gram);
  constexpr std::int64_t bf16 = 2;
  return std::max((kFp32 + bf16) * x, bf16 * (2 * x + 2 * gram));
}

}  // namespace

bool needs_whole_matrices(const RunQuestion& q) { return q.layout.matrix_moments >= 0; }

std::vector<HiddenMatrix> hidden_matrices(const RunQuestion& q) {
  std::vector<HiddenMatrix> all;
  for (const ModelPart& part : parts_on_rank(q)) {
    for (const ParamSpec& spec : trained_params(q.model, q.tp(), part)) {
      if (spec.shape.size() != 2 || !spec.name.starts_with("blocks.")) continue;
      all.push_back({elements_on_rank(q, spec), std::min(spec.shape[0], spec.shape[1])});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const HiddenMatrix& a, const HiddenMatrix& b) {
    return a.elements > b.elements;
  });
  return all;
}

std::int64_t matrix_traffic(const RunQuestion& q) {
  const std::vector<HiddenMatrix> all = hidden_matrices(q);
  std::int64_t elements = 0;
  for (std::size_t at = 0; at < all.size(); at += static_cast<std::size_t>(q.shards())) {
    elements += in_shards(q) ? 2 * shard_size(all[at].elements, q.shards()) : all[at].elements;
  }
  return kFp32 * (q.shards() - 1) * elements;
}

// As many at a time as there are ranks, of which this one computes one. In shards: a row for each
// rank out and in, as long as the largest needs, and where its own is smaller a copy without the
// gaps. Whole: its result, and beside it the matrix with what computes on it, or all results.
std::int64_t matrix_update_bytes(const RunQuestion& q) {
  const std::vector<HiddenMatrix> all = hidden_matrices(q);
  const std::int64_t ranks = q.shards();
  std::int64_t most = 0;
  for (std::size_t at = 0; at < all.size(); at += static_cast<std::size_t>(ranks)) {
    const std::size_t own = at + static_cast<std::size_t>(q.place[Axis::dp_shard]);
    const HiddenMatrix* const mine = own < all.size() ? &all[own] : nullptr;
    const std::int64_t computing = mine != nullptr ? orthogonalising_bytes(q, *mine) : 0;
    const std::int64_t largest = all[at].elements;
    std::int64_t bytes = 0;
    if (in_shards(q)) {
      const std::int64_t row = shard_size(largest, q.shards());
      const std::int64_t shard = mine != nullptr ? shard_size(mine->elements, q.shards()) : row;
      bytes = kFp32 * ranks * (2 * row + (shard < row ? shard : 0)) + computing;
    } else {
      const std::int64_t collected = mine != nullptr ? kFp32 * mine->elements + computing : 0;
      const std::int64_t results = ranks > 1 ? kFp32 * ranks * largest : 0;
      bytes = kFp32 * largest + std::max({collected, kFp32 * largest, results});
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace tessera::planner
