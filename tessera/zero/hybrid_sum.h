#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "tessera/zero/data_groups.h"

namespace tessera::zero {

// [Note: hybrid sums] Sums of gradient shards where there are replicas, in one of two ways:
//   CPU tensors of ranks that share memory   each rank adds up its shard of all ranks in their
//   order
//               ([Note: copies] in comm/collective.h). The bits are those without replicas.
//   otherwise   a reduce-scatter in the shard group, then an all-reduce of the shard over replicas.
//               The order is that of the backend two-level: inside a host first. 16-bit gradients
//               are rounded after each of the two.
// Both are charged as the second: to the shard group and to the replicate group.
//
// The second half of a sum starts in poll(), if its first half has ended, or in a wait for it. Sums
// start it in the order in which they began, so that all ranks make the same calls. A failure is
// reported by the wait. On a GPU the second half follows on a stream of its own at once.
class HybridSum {
 public:
  explicit HybridSum(DataGroups groups);
  ~HybridSum();

  // Starts a sum. `to`: this rank's shards of `from`, side by side; other memory than `from`.
  // `parts`: as in comm::Call.
  comm::Work start(const at::Tensor& to, const at::Tensor& from, const comm::Call& call);
  // Starts the second half of sums whose first half has ended. Does not wait.
  void poll();

 private:
  class Queue;
  comm::Work start_copies(const at::Tensor& to, const at::Tensor& from, comm::Call call) const;

  const DataGroups groups_;
  const std::shared_ptr<Queue> queue_;
  std::optional<c10::Stream> stream_;  // of the GPU
};

}  // namespace tessera::zero
