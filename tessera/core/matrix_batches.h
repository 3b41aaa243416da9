#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

// [Note: batches of matrices] On a GPU, the exchange rounds of [Note: matrices] are done several at
// a time, so that a few large operations replace many small ones. A batch is a range of rounds. Its
// buffer has a row for each rank, and a row has a block for each round of the batch. Batches depend
// on the matrices and the number of ranks but not on the stage, so stages have equal bits.
inline constexpr std::int64_t kMatrixBatch = std::int64_t{1} << 26;

// Round of the exchange: N matrices, one for each rank.
struct MatrixRound {
  std::int64_t elements = 0;  // of its largest matrix
  std::int64_t block = 0;     // elements of its block in a row
};

struct MatrixBatch {
  std::size_t begin = 0, end = 0;  // rounds
  std::int64_t elements = 0;       // of the largest matrices of its rounds
  std::int64_t row = 0;            // elements of a rank's row
};

// Cuts rounds into batches with at most kMatrixBatch elements on all ranks, or of one round.
inline std::vector<MatrixBatch> matrix_batches(const std::vector<MatrixRound>& rounds,
                                               std::int64_t ranks) {
  std::vector<MatrixBatch> batches;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    if (batches.empty() || (batches.back().elements + rounds[i].elements) * ranks > kMatrixBatch) {
      batches.push_back({i, i, 0, 0});
    }
    batches.back().end = i + 1;
    batches.back().elements += rounds[i].elements;
    batches.back().row += rounds[i].block;
  }
  return batches;
}

}  // namespace tessera
