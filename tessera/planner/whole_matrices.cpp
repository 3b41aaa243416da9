#include "tessera/planner/whole_matrices.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/core/matrix_batches.h"
#include "tessera/core/shard.h"
#include "tessera/planner/parameters.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kFp32 = 4;

bool in_shards(const RunConfig& q) { return sharding_of_stage(q.zero).optimizer && q.shards() > 1; }

// Returns the bytes of orthogonalization besides the matrix: x and the next x, the Gram matrix and
// its polynomial.
std::int64_t orthogonalization_bytes(const HiddenMatrix& matrix) {
  const std::int64_t x = matrix.elements, gram = matrix.smaller_side * matrix.smaller_side;
  return kFp32 * (2 * x + 2 * gram);
}

// Returns the batches of a GPU: [Note: batches of matrices].
std::vector<MatrixBatch> batches_on_gpu(const RunConfig& q, const std::vector<HiddenMatrix>& all) {
  std::vector<MatrixRound> rounds;
  for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(q.shards())) {
    const std::int64_t largest = all[first].elements;
    rounds.push_back({largest, in_shards(q) ? shard_size(largest, q.shards()) : largest});
  }
  return matrix_batches(rounds, q.shards());
}

// The matrices of equal shape of a batch are orthogonalized together, in bf16; shards are joined in
// fp32 before.
std::int64_t update_bytes_on_gpu(const RunConfig& q, const std::vector<HiddenMatrix>& all,
                                 const Coordinate& at) {
  constexpr std::int64_t kBf16 = 2;
  const auto ranks = static_cast<std::size_t>(q.shards());
  std::int64_t most = 0;
  for (const MatrixBatch& batch : batches_on_gpu(q, all)) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> stacks;  // bytes by shape
    for (std::size_t round = batch.begin; round < batch.end; ++round) {
      const std::size_t own = round * ranks + static_cast<std::size_t>(q.axes.shard_index(at));
      if (own >= all.size()) continue;
      const std::int64_t x = all[own].elements, side = all[own].smaller_side;
      const std::int64_t joined = in_shards(q) ? shard_size(x, q.shards()) * q.shards() : 0;
      std::int64_t& stack = stacks[{x, side}];
      stack += kFp32 * joined + kBf16 * (2 * x + 2 * side * side);
      most = std::max(most, stack);
    }
  }
  return most;
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

std::int64_t matrix_buffer_bytes(const RunConfig& q, const Coordinate& at) {
  if (!q.gpu.value_or(false)) return 0;
  std::int64_t row = 0;
  for (const MatrixBatch& batch : batches_on_gpu(q, hidden_matrices(q, at))) {
    row = std::max(row, batch.row);
  }
  return kFp32 * row * q.shards() * (q.shards() > 1 ? 2 : 1);
}

// Handles as many matrices at a time as there are ranks; this rank computes one of them. Sharded:
// one send row and one receive row per rank, sized for the largest matrix, and a copy without gaps
// if the rank's own matrix is smaller. Not sharded: the result, plus the matrix and its
// temporaries, or all results.
std::int64_t matrix_update_bytes(const RunConfig& q, const Coordinate& at) {
  const std::vector<HiddenMatrix> all = hidden_matrices(q, at);
  if (q.gpu.value_or(false)) return update_bytes_on_gpu(q, all, at);
  const std::int64_t ranks = q.shards();
  std::int64_t most = 0;
  for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(ranks)) {
    const std::size_t own = first + static_cast<std::size_t>(q.axes.shard_index(at));
    const HiddenMatrix* const mine = own < all.size() ? &all[own] : nullptr;
    const std::int64_t computing = mine != nullptr ? orthogonalization_bytes(*mine) : 0;
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
