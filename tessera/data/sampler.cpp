#include "tessera/data/sampler.h"

namespace tessera::data {

std::uint64_t Sampler::first(std::int64_t step, std::int64_t rank, std::int64_t micro) const {
  const std::int64_t before = (rank * micro_batches + micro) * micro_batch;
  return static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(global_batch()) +
         static_cast<std::uint64_t>(before);
}

}  // namespace tessera::data
