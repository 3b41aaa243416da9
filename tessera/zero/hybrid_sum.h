#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "tessera/zero/engine_of_part.h"

namespace tessera::zero {

// [Note: hybrid sums] Sums of gradient shards with replicas, computed in one of two ways:
//   CPU tensors of ranks that share memory: each rank sums its shard over all ranks in rank order
//     ([Note: copies] in comm/call.h). The bits are the same as without replicas.
//   Otherwise: a reduce-scatter in the shard group, then an all-reduce of the shard over replicas.
//     The order of the sum is that of the two-level backend: within a host first. 16-bit gradients
//     are rounded after each of the two.
// The traffic of both is counted as that of the second, in the shard group and the replicate group.
//
// The all-reduce of a sum starts in poll(), if its reduce-scatter has ended, or in a wait for the
// sum. All-reduces start in the order of their sums, so that all ranks make the same calls. The
// wait reports failures. On a GPU the all-reduce is enqueued immediately on a separate stream.
class HybridSum {
 public:
  explicit HybridSum(comm::Group replicate);
  ~HybridSum();

  // Starts a sum over groups with these replicas. `to`: this rank's shards of `from`, contiguous;
  // must not overlap `from`.
  comm::Work start(const DataGroups& groups, const at::Tensor& to, const at::Tensor& from,
                   const comm::Call& call);
  // Starts the all-reduces whose reduce-scatters have ended. Does not wait.
  void poll();

 private:
  class Queue;
  const comm::Group replicate_;
  const std::shared_ptr<Queue> queue_;
  std::optional<c10::Stream> stream_;  // of the all-reduces on a GPU
};

}  // namespace tessera::zero
