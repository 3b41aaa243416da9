#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// Counts of all ranks in one all_to_all: [Note: unequal counts] in collective.h. Every rank sends
// its counts to the others as row_bytes() bytes.
class CountMatrix {
 public:
  explicit CountMatrix(int ranks);
  // Returns the counts of an all_to_all of shards.
  static CountMatrix of_shards(std::size_t count, int ranks);

  static std::size_t row_bytes(int ranks) noexcept;
  static void write_row(const ExchangeCounts& counts, void* to);
  void read_row(int rank, const void* from);

  // Throws a UsageError that names a pair of ranks whose counts differ, with the counts. All ranks
  // throw it.
  void check(const std::string& label, std::uint64_t sequence, const std::string& group) const;

  // Returns the number of elements that rank `from` sends to rank `to`.
  std::size_t sent(int from, int to) const noexcept { return in_[index(from, to)]; }
  // Returns the beginning of the part for rank `to` in the input of `rank`.
  std::size_t in_begin(int rank, int to) const noexcept;
  // Returns the beginning of the part from rank `from` in the output of `rank`.
  std::size_t out_begin(int rank, int from) const noexcept;
  // Returns the size of a rank's input.
  std::size_t in_count(int rank) const noexcept { return in_begin(rank, ranks_); }
  // Returns the largest number of elements that one rank sends to one rank.
  std::size_t largest() const noexcept;

  int ranks() const noexcept { return ranks_; }

 private:
  std::size_t index(int rank, int other) const noexcept {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(ranks_) +
           static_cast<std::size_t>(other);
  }

  int ranks_;
  std::vector<std::uint64_t> in_, out_;  // by rank, then by the other rank
};

}  // namespace tessera::comm
