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

// Matrices that the same ranks exchange: with expert parallelism, those of experts are exchanged
// over the ranks with the same experts.
struct Exchange {
  std::vector<HiddenMatrix> matrices;  // largest first
  int shards = 1;
  int shard = 0;  // index of this rank
  bool in_shards = false;
};

std::vector<Exchange> exchanges(const RunConfig& q, const Coordinate& at) {
  const bool cut = sharding_of_stage(q.zero).optimizer;
  const int index = q.axes.index(kShardAxes, at);
  std::vector<Exchange> all = {{{}, q.shards(), index, cut && q.shards() > 1}};
  if (q.ep() > 1) {
    all.push_back({{}, q.expert_shards(), index / q.ep(), cut && q.expert_shards() > 1});
  }
  for (const HiddenMatrix& matrix : hidden_matrices(q, at)) {
    all[matrix.of_expert && q.ep() > 1 ? 1 : 0].matrices.push_back(matrix);
  }
  return all;
}

// Returns the bytes of orthogonalization besides the matrix: x and the next x, the Gram matrix and
// its polynomial.
std::int64_t orthogonalization_bytes(const HiddenMatrix& matrix) {
  const std::int64_t x = matrix.elements, gram = matrix.smaller_side * matrix.smaller_side;
  return kFp32 * (2 * x + 2 * gram);
}

// Returns the batches of a GPU: [Note: batches of matrices].
std::vector<MatrixBatch> batches_on_gpu(const Exchange& group) {
  std::vector<MatrixRound> rounds;
  const auto ranks = static_cast<std::size_t>(group.shards);
  for (std::size_t first = 0; first < group.matrices.size(); first += ranks) {
    const std::int64_t largest = group.matrices[first].elements;
    rounds.push_back({largest, group.in_shards ? shard_size(largest, group.shards) : largest});
  }
  return matrix_batches(rounds, group.shards);
}

// The matrices of equal shape of a batch are orthogonalized together, in bf16; shards are joined in
// fp32 before.
std::int64_t update_bytes_on_gpu(const Exchange& group) {
  constexpr std::int64_t kBf16 = 2;
  const std::vector<HiddenMatrix>& all = group.matrices;
  const auto ranks = static_cast<std::size_t>(group.shards);
  std::int64_t most = 0;
  for (const MatrixBatch& batch : batches_on_gpu(group)) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> stacks;  // bytes by shape
    for (std::size_t round = batch.begin; round < batch.end; ++round) {
      const std::size_t own = round * ranks + static_cast<std::size_t>(group.shard);
      if (own >= all.size()) continue;
      const std::int64_t x = all[own].elements, side = all[own].smaller_side;
      const std::int64_t joined = group.in_shards ? shard_size(x, group.shards) * group.shards : 0;
      std::int64_t& stack = stacks[{x, side}];
      stack += kFp32 * joined + kBf16 * (2 * x + 2 * side * side);
      most = std::max(most, stack);
    }
  }
  return most;
}

// Handles as many matrices at a time as there are ranks; this rank computes one of them. Sharded:
// one send row and one receive row per rank, sized for the largest matrix, and a copy without gaps
// if the rank's own matrix is smaller. Not sharded: the result, plus the matrix and its
// temporaries, or all results.
std::int64_t update_bytes_on_cpu(const Exchange& group) {
  const std::vector<HiddenMatrix>& all = group.matrices;
  const std::int64_t ranks = group.shards;
  std::int64_t most = 0;
  for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(ranks)) {
    const std::size_t own = first + static_cast<std::size_t>(group.shard);
    const HiddenMatrix* const mine = own < all.size() ? &all[own] : nullptr;
    const std::int64_t computing = mine != nullptr ? orthogonalization_bytes(*mine) : 0;
    const std::int64_t largest = all[first].elements;
    std::int64_t bytes = 0;
    if (group.in_shards) {
      const std::int64_t row = shard_size(largest, group.shards);
      const std::int64_t shard = mine != nullptr ? shard_size(mine->elements, group.shards) : row;
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

}  // namespace

bool needs_whole_matrices(const RunConfig& q) { return q.layout.matrix_moments >= 0; }

std::vector<HiddenMatrix> hidden_matrices(const RunConfig& q, const Coordinate& at) {
  std::vector<HiddenMatrix> all;
  for (const ModelPart& part : parts_on_rank(q, at)) {
    for (const ParamSpec& spec : trained_params(q, part, at)) {
      if (spec.shape.size() != 2 || !spec.name.starts_with("blocks.")) continue;
      all.push_back(
          {elements_on_rank(q, spec), std::min(spec.shape[0], spec.shape[1]), spec.of_expert});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const HiddenMatrix& a, const HiddenMatrix& b) {
    return a.elements > b.elements;
  });
  return all;
}

std::int64_t matrix_traffic(const RunConfig& q, const Coordinate& at) {
  std::int64_t sent = 0;
  for (const Exchange& group : exchanges(q, at)) {
    const std::vector<HiddenMatrix>& all = group.matrices;
    const auto ranks = static_cast<std::size_t>(group.shards);
    for (std::size_t first = 0; first < all.size(); first += ranks) {
      const std::int64_t own = all[first].elements;
      const std::int64_t elements = group.in_shards ? 2 * shard_size(own, group.shards) : own;
      sent += kFp32 * (group.shards - 1) * elements;
    }
  }
  return sent;
}

std::int64_t matrix_buffer_bytes(const RunConfig& q, const Coordinate& at) {
  if (!q.gpu.value_or(false)) return 0;
  std::int64_t bytes = 0;
  for (const Exchange& group : exchanges(q, at)) {
    std::int64_t row = 0;
    for (const MatrixBatch& batch : batches_on_gpu(group)) row = std::max(row, batch.row);
    bytes += kFp32 * row * group.shards * (group.shards > 1 ? 2 : 1);
  }
  return bytes;
}

std::int64_t matrix_update_bytes(const RunConfig& q, const Coordinate& at) {
  std::int64_t most = 0;
  for (const Exchange& group : exchanges(q, at)) {
    most = std::max(
        most, q.gpu.value_or(false) ? update_bytes_on_gpu(group) : update_bytes_on_cpu(group));
  }
  return most;
}

}  // namespace tessera::planner
