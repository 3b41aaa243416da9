#include "tessera/planner/whole_matrices.h"

#include <algorithm>

#include "tessera/core/shard.h"
#include "tessera/planner/parameters.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kFp32 = 4;

bool in_shards(const RunConfig& q) { return sharding_of_stage(q.zero).optimizer && q.shards() > 1; }

// Returns the bytes of orthogonalization besides the matrix: x and the next x, the Gram matrix and
// its polynomial. On a GPU these are bf16; the matrix is cast before and after.
std::int64_t orthogonalization_bytes(const RunConfig& q, const HiddenMatrix& matrix) {
  const std::int64_t x = matrix.elements, gram = matrix.smaller_side * matrix.smaller_side;
  if (!q.gpu.value_or(false)) return kFp32 * (2 * x + 2 * gram);
  constexpr std::int64_t bf16 = 2;
  return std::max((kFp32 + bf16) * x, bf16 * (2 * x + 2 * gram));
}

}  // namespace

bool needs_whole_matrices(const RunConfig& q) { return q.layout.matrix_moments >= 0; }

std::vector<HiddenMatrix> hidden_matrices(const RunConfig& q, const Coordinate& at) {
  std::vector<HiddenMatrix> all;
  for (const ModelPart& part : parts_on_rank(q, at)) {
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

std::int64_t matrix_traffic(const RunConfig& q, const Coordinate& at) {
  const std::vector<HiddenMatrix> all = hidden_matrices(q, at);
  std::int64_t elements = 0;
  for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(q.shards())) {
    const std::int64_t own = all[first].elements;
    elements += in_shards(q) ? 2 * shard_size(own, q.shards()) : own;
  }
  return kFp32 * (q.shards() - 1) * elements;
}

// Handles as many matrices at a time as there are ranks; this rank computes one of them. Sharded:
// one send row and one receive row per rank, sized for the largest matrix, and a copy without gaps
// if the rank's own matrix is smaller. Not sharded: the result, plus the matrix and its
// temporaries, or all results.
std::int64_t matrix_update_bytes(const RunConfig& q, const Coordinate& at) {
  const std::vector<HiddenMatrix> all = hidden_matrices(q, at);
  const std::int64_t ranks = q.shards();
  std::int64_t most = 0;
  for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(ranks)) {
    const std::size_t own = first + static_cast<std::size_t>(at[Axis::dp_shard]);
    const HiddenMatrix* const mine = own < all.size() ? &all[own] : nullptr;
    const std::int64_t computing = mine != nullptr ? orthogonalization_bytes(q, *mine) : 0;
    const std::int64_t largest = all[first].elements;
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
