#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/count_matrix.h"
#include "tessera/comm/shm/group_state.h"
#include "tessera/comm/transport.h"

namespace tessera::comm::shm {

// Collectives among the ranks of one host.
//
// A rank announces a call by a header in its control block, and continues only after it has read
// and compared the headers of all ranks. Then it uses one of three algorithms, the same on every
// rank because all read the same headers:
//   small    the data came with the headers, and each rank reads what it needs;
//   direct   all buffers are in symmetric memory: rank r reduces shard r of all buffers into all
//            buffers (or copies from them), then all ranks synchronize;
//   staged   pieces that fit the cache are copied through the control blocks, two in flight.
//
// The counts of an all_to_all with unequal counts come with the headers, so every rank knows those
// of all ranks before it chooses the algorithm: see exchange.cpp.
//
// [Note: slots] Two slots per block are enough. A rank writes slot s%2 for call s after it ended
// call s-1, for which it had seen every header s-1; a peer posts header s-1 only after it ended
// call s-2, the last that used this slot. The same holds for the stages between two calls; inside a
// call, [Note: pieces] in staged.cpp applies.
//
// [Note: slowed link] With GroupOptions::link a call takes as long as a ring over such a link
// would, counted from the arrival of all ranks: the latency for each step, and the bytes at the
// bandwidth. The data is moved as usual; then the thread that runs the queue sleeps for the
// remaining time. No call is `quick` then, so that the submitting thread continues to compute and
// calls run one after another as on a real link.
class ShmTransport final : public Transport, private GroupState {
 public:
  explicit ShmTransport(GroupState group) : GroupState(std::move(group)) {}

  bool quick(const Collective& call) const override;
  void post(const Collective& call) override;
  bool finish(const Collective& call, bool may_give_up) override;
  void abandon() override { liveness_->abandon(); }

 private:
  using Step = std::function<void(std::size_t piece)>;

  bool is_small(const Collective& call) const;
  void hold_until(Liveness::Clock::time_point end, const Collective& call);
  bool await_headers(const Collective& call, bool may_give_up);
  const Slot& slot(int rank) const { return control_.block(rank).slots[sequence_ % 2]; }

  void small(const Collective& call);
  bool direct(const Collective& call);
  void direct_parts(const Collective& call, const std::vector<std::byte*>& in);
  std::byte* resolve(const Collective& call, int rank, Address Header::*which) const;
  std::vector<std::byte*> resolve_all(const Collective& call, Address Header::*which) const;

  bool exchange(const Collective& call, bool may_give_up);
  CountMatrix exchanged_counts(const Collective& call) const;
  void post_exchange(const Collective& call, Slot& mine) const;
  std::size_t exchange_room() const;
  void copy_parts(const Collective& call, const CountMatrix& counts,
                  const std::function<const std::byte*(int rank)>& input_of);

  void staged(const Collective& call);
  void staged_reduction(const Collective& call);
  void staged_gather(const Collective& call);
  void staged_exchange(const Collective& call, const CountMatrix& counts);
  void staged_rooted(const Collective& call);
  void run_pieces(const Collective& call, std::size_t pieces, const std::vector<Step>& steps);

  void await_phase(const Collective& call, std::uint32_t goal);
  void await(Signal& signal, std::uint32_t goal, int rank, const Collective& call);
  std::string doing(const Collective& call) const;
  void reduce_into(const Collective& call, const std::vector<const void*>& sources,
                   const std::vector<void*>& destinations, std::size_t count);
  void copy(void* to, const void* from, std::size_t bytes);

  std::uint32_t sequence_ = 0;  // number of the last posted call
  std::uint32_t phase_ = 0;     // steps completed in all previous calls, equal on all ranks
};

}  // namespace tessera::comm::shm
