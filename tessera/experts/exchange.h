// Exchange of rows between the ranks of expert parallelism. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/group.h"

namespace tessera::experts {

// Returns the numbers of the experts of a rank: [first, last).
struct ExpertRange {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
};
ExpertRange experts_of(std::int64_t count, int ranks, int rank);

// Counts of the rows that ranks exchange, for the experts of [Note: expert parallelism]. A rank
// sends its rows sorted by expert, which sorts them by rank too. It receives those of rank 0, then
// those of rank 1, …, each sorted by expert.
class Exchange {
 public:
  // Sends the numbers of rows and waits for those of the other ranks. `counts`: rows of this rank
  // for each expert of the model, int64.
  Exchange(comm::Group group, const at::Tensor& counts, const std::string& label);
  // Restores an exchange from counts().
  Exchange(comm::Group group, at::Tensor counts);

  // int64 [2, ranks, experts of a rank rounded up]: rows sent and received, on the CPU.
  const at::Tensor& counts() const { return counts_; }
  // Returns the rows that other ranks sent, [received, …].
  at::Tensor there(const at::Tensor& rows, const std::string& label) const;
  // Returns the rows of this rank after the ranks of their experts changed them.
  at::Tensor back(const at::Tensor& rows, const std::string& label) const;
  // Returns the number of rows that this rank sends.
  std::int64_t sent() const;
  // Returns the rows of each of this rank's `count` experts, int64 [count] on the CPU.
  at::Tensor rows_of_experts(std::int64_t count) const;
  // Returns, for rows sorted by expert, the received row of each: int32 [received].
  at::Tensor source() const;

 private:
  comm::Group group_;
  at::Tensor counts_;
  std::vector<std::int64_t> sent_, received_;  // by rank
};

}  // namespace tessera::experts
