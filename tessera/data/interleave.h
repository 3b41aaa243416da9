#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

// [Note: interleave] Maps a sample number of a mixture to a source and a sample number of that
// source, by computation alone. The sources are the leaves of a binary tree. At a branch with
// weights a and b, floor(n · a / (a + b)) of the first n samples go left, so the proportion is
// always as close as possible and exact after every a + b samples. Each source is read as 0, 1, 2,
// … without gaps.
class Interleave {
 public:
  // Weights must be positive, with a sum below 2^31.
  explicit Interleave(std::vector<std::uint64_t> weights);

  struct Pick {
    std::size_t source = 0;
    std::uint64_t sample = 0;  // of that source
  };
  Pick pick(std::uint64_t sample) const;
  // Returns how many of the first `samples` come from each source.
  std::vector<std::uint64_t> counts(std::uint64_t samples) const;

 private:
  std::vector<std::uint64_t> weights_, sums_;  // sums_[i]: sum of the weights before i
};

// Converts decimal weights ("0.7", "3") to integers in the same proportion. Throws UsageError that
// starts with `flag` if one is not a positive number or has too many digits.
std::vector<std::uint64_t> whole_weights(const std::vector<std::string>& texts,
                                         const std::string& flag);
// Reduces counts to weights that Interleave accepts, exactly if possible.
std::vector<std::uint64_t> weights_of_counts(std::vector<std::uint64_t> counts);

}  // namespace tessera::data
