#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

// [Note: interleave] Which of several sources a sample of a mixture comes from, and the how many-th
// of that source it is, computed from the sample's number. The sources are the leaves of a tree; at
// each branch of weights a and b, floor(n · a / (a + b)) of the first n samples go left: always as
// many as is right, and exactly after every a + b. Each source sees 0, 1, 2, … without a gap.
class Interleave {
 public:
  // Each above 0, their sum below 2^31.
  explicit Interleave(std::vector<std::uint64_t> weights);

  struct Pick {
    std::size_t source = 0;
    std::uint64_t sample = 0;  // of that source
  };
  Pick pick(std::uint64_t sample) const;
  // Of the first `samples`, those of each source.
  std::vector<std::uint64_t> counts(std::uint64_t samples) const;

 private:
  std::vector<std::uint64_t> weights_, sums_;  // sums_[i]: of those before i
};

// Weights as people write them ("0.7", "3"), as whole numbers in the same proportion. Throws
// UsageError that begins with `flag` for what is no number above 0, or has too many digits.
std::vector<std::uint64_t> whole_weights(const std::vector<std::string>& texts,
                                         const std::string& flag);
// Counts, reduced to weights that an Interleave takes, exact where they fit.
std::vector<std::uint64_t> weights_of_counts(std::vector<std::uint64_t> counts);

}  // namespace tessera::data
