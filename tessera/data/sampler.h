#pragma once

#include <cstdint>

namespace tessera::data {

// Assignment of samples to ranks. A step's global batch is `ranks · micro_batches · micro_batch`
// consecutive samples: first those of rank 0, divided into its micro-batches, then rank 1, and so
// on. One process that takes the whole batch sees the same samples.
struct Sampler {
  std::int64_t ranks = 1;
  std::int64_t micro_batches = 1;
  std::int64_t micro_batch = 1;

  std::int64_t global_batch() const { return ranks * micro_batches * micro_batch; }
  // Returns the first of the `micro_batch` samples of a micro-batch.
  std::uint64_t first(std::int64_t step, std::int64_t rank, std::int64_t micro) const;
};

}  // namespace tessera::data
