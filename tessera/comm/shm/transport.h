#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/shm/group_state.h"
#include "tessera/comm/transport.h"

namespace tessera::comm::shm {

// Collectives among the ranks of one host.
//
// A call is announced by a header in this rank's control block; no rank goes on before it has seen,
// and compared, the headers of all. Then one of three ways, the same on every rank because all see
// the same headers:
//   small    the data came with the headers: each rank reads what it needs;
//   direct   all buffers lie in symmetric memory: rank r reduces shard r from everybody's buffer
//            into everybody's buffer (or copies from them), then all say "done";
//   staged   pieces are copied through the control blocks, two in flight; a piece fits in the
//            cache.
//
// [Note: slots] Two slots per block are enough. A rank writes slot s%2 for call s after it ended
// call s-1, for which it had seen every header s-1; a peer posts header s-1 only after it ended
// call s-2, the last that used this slot. The same holds for the stages between two calls; inside
// a call [Note: pieces] in staged.cpp takes care.
//
// [Note: slowed link] With GroupOptions::link a call takes as long as a ring over such a link
// would: from when all ranks are there, each of its steps the latency, and its bytes at the
// bandwidth. The same bytes move the same way; then whoever runs the queue sleeps for what is left.
// No call is quick then, so a thread that submits goes on computing, and calls follow each other as
// on a wire.
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

  void staged(const Collective& call);
  void staged_reduction(const Collective& call);
  void staged_gather(const Collective& call);
  void staged_exchange(const Collective& call);
  void staged_rooted(const Collective& call);
  void run_pieces(const Collective& call, std::size_t pieces, const std::vector<Step>& steps);

  void await_phase(const Collective& call, std::uint32_t goal);
  void await(Signal& signal, std::uint32_t goal, int rank, const Collective& call);
  std::string doing(const Collective& call) const;
  void reduce_into(const Collective& call, const std::vector<const void*>& sources,
                   const std::vector<void*>& destinations, std::size_t count);
  void copy(void* to, const void* from, std::size_t bytes);

  std::uint32_t sequence_ = 0;  // of the call last posted
  std::uint32_t phase_ = 0;     // steps taken in all calls before this one, equal on all ranks
};

}  // namespace tessera::comm::shm
