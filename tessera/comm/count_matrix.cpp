#include "tessera/comm/count_matrix.h"

#include <algorithm>
#include <cstring>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"

namespace tessera::comm {

CountMatrix::CountMatrix(int ranks)
    : ranks_(ranks), in_(as_size(ranks) * as_size(ranks)), out_(in_.size()) {}

CountMatrix CountMatrix::of_shards(std::size_t count, int ranks) {
  CountMatrix counts(ranks);
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      counts.in_[counts.index(from, to)] = shard_of(count, ranks, to).size;
      counts.out_[counts.index(to, from)] = shard_of(count, ranks, to).size;
    }
  }
  return counts;
}

std::size_t CountMatrix::row_bytes(int ranks) noexcept {
  return 2 * as_size(ranks) * sizeof(std::uint64_t);
}

void CountMatrix::write_row(const ExchangeCounts& counts, void* to) {
  static_assert(sizeof(std::size_t) == sizeof(std::uint64_t));
  const std::size_t bytes = counts.in.size() * sizeof(std::uint64_t);
  std::memcpy(to, counts.in.data(), bytes);
  std::memcpy(static_cast<std::byte*>(to) + bytes, counts.out.data(), bytes);
}

void CountMatrix::read_row(int rank, const void* from) {
  const std::size_t bytes = as_size(ranks_) * sizeof(std::uint64_t);
  std::memcpy(&in_[index(rank, 0)], from, bytes);
  std::memcpy(&out_[index(rank, 0)], static_cast<const std::byte*>(from) + bytes, bytes);
}

void CountMatrix::check(const std::string& label, std::uint64_t sequence,
                        const std::string& group) const {
  std::string first;
  int pairs = 0;
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      const std::uint64_t sends = in_[index(from, to)], expects = out_[index(to, from)];
      if (sends == expects) continue;
      if (++pairs > 1) continue;
      first = str("rank ", from, " sends ", sends, " elements to rank ", to, ", but rank ", to,
                  " expects ", expects, " from rank ", from, " (in_counts[", to, "] of rank ", from,
                  " must equal out_counts[", from, "] of rank ", to, ")");
    }
  }
  if (pairs == 0) return;
  throw UsageError(str("the counts of the ranks differ in call #", sequence, " all_to_all",
                       label.empty() ? "" : " " + quote(label), " of group ", group, ": ", first,
                       pairs == 1 ? "" : str("; other pairs that differ: ", pairs - 1)));
}

std::size_t CountMatrix::in_begin(int rank, int to) const noexcept {
  std::size_t sum = 0;
  for (int r = 0; r < to; ++r) sum += in_[index(rank, r)];
  return sum;
}

std::size_t CountMatrix::out_begin(int rank, int from) const noexcept {
  std::size_t sum = 0;
  for (int r = 0; r < from; ++r) sum += out_[index(rank, r)];
  return sum;
}

std::size_t CountMatrix::largest() const noexcept {
  return *std::max_element(in_.begin(), in_.end());
}

}  // namespace tessera::comm
