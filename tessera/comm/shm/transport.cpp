#include "tessera/comm/shm/transport.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/shm/link.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::shm {
namespace {

// Interval at which a sleeping rank checks its peers.
constexpr auto kLookAtPeers = std::chrono::milliseconds(50);

// Returns the bytes that a rank adds to the header of a small call; equal on every rank.
std::size_t payload_bytes(Op op, DType dtype, std::size_t count, int ranks) {
  if (op == Op::barrier) return 0;
  return (op == Op::all_gather ? shard_stride(count, ranks) : count) * size_of(dtype);
}

}  // namespace

bool ShmTransport::quick(const Collective& call) const {
  return !link_.slowed() && (call.shared || is_small(call));
}

bool ShmTransport::is_small(const Collective& call) const {
  if (call.counts) return call.bytes() <= exchange_room();  // only of this rank
  return !call.parts && payload_bytes(call.op, call.dtype, call.count, ranks_) <= kSmallBytes;
}

void ShmTransport::post(const Collective& call) {
  liveness_->check_failure([&] { return comm::describe(call); });
  if (call.counts && CountMatrix::row_bytes(ranks_) > kSmallBytes) {
    throw UsageError(str(comm::describe(call), " of group ", liveness_->group(), ": ", ranks_,
                         " ranks on one host; must be at most ",
                         kSmallBytes / CountMatrix::row_bytes(1)));
  }
  ++sequence_;
  Slot& mine = control_.block(rank_).slots[sequence_ % 2];
  Header& header = mine.header;
  header = Header{make_record(call), {}, {}};
  const std::size_t size = size_of(call.dtype);
  const bool gives =
      call.op != Op::barrier && !call.shared && (call.op != Op::broadcast || rank_ == call.peer);
  const bool small_in = call.op == Op::all_gather && !call.in_place();
  const std::size_t in_bytes = (small_in ? own_count(call, ranks_, rank_) : call.count) * size;
  if (call.counts) {
    post_exchange(call, mine);
  } else if (is_small(call)) {
    if (gives && in_bytes > 0) std::memcpy(mine.payload, call.in, in_bytes);
  } else {
    if (gives) header.in = memories_->address(call.in, in_bytes);
    // Only in these two operations peers write into a result.
    if (call.op == Op::all_reduce || (call.op == Op::reduce && rank_ == call.peer)) {
      header.out = memories_->address(call.out, call.bytes());
    }
  }
  control_.block(rank_).posted.raise(sequence_);
}

bool ShmTransport::finish(const Collective& call, bool may_give_up) {
  if (!await_headers(call, may_give_up)) return false;
  compare_calls(
      ranks_, [this](int r) -> const Record& { return slot(r).header.record; }, sequence_,
      liveness_->group());
  const auto began = Liveness::Clock::now();
  if (call.shared) {
    // The call is only a barrier, and every rank has posted its header.
  } else if (call.counts) {
    if (!exchange(call, may_give_up)) return false;
  } else if (is_small(call)) {
    small(call);
  } else if (!direct(call)) {
    for_each_part(call, ranks_, rank_, [this](const Collective& part) {
      await_phase(part, phase_);  // until all ranks have read the previous part from the stages
      staged(part);
    });
  }
  meter_->busy(Liveness::Clock::now() - began);
  if (link_.slowed()) hold_until(began + link_time(link_, call, ranks_, rank_), call);
  return true;
}

// Sleeps until `end`. Throws earlier if the job fails.
void ShmTransport::hold_until(Liveness::Clock::time_point end, const Collective& call) {
  for (auto now = Liveness::Clock::now(); now < end; now = Liveness::Clock::now()) {
    liveness_->check_failure([&] { return doing(call); });
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>(end - now, std::chrono::nanoseconds(kLookAtPeers)));
  }
}

bool ShmTransport::await_headers(const Collective& call, bool may_give_up) {
  for (int r = 0; r < ranks_; ++r) {
    Signal& posted = control_.block(r).posted;
    if (may_give_up) {
      if (!posted.spin(sequence_, spin_)) return false;
    } else {
      await(posted, sequence_, r, call);
    }
  }
  return true;
}

// Every rank reads the payloads of the headers and computes all of its own result.
void ShmTransport::small(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const std::size_t stride = shard_stride(call.count, ranks_) * size;
  const Shard own = own_shard(call, call.count, ranks_, rank_);
  const auto sources = [&](std::size_t offset) {
    std::vector<const void*> all;
    for (int r = 0; r < ranks_; ++r) all.push_back(slot(r).payload + offset);
    return all;
  };
  auto* out = static_cast<std::byte*>(call.out);
  switch (call.op) {
    case Op::barrier: break;
    case Op::all_reduce: reduce_into(call, sources(0), {out}, call.count); break;
    case Op::reduce:
      if (rank_ == call.peer) reduce_into(call, sources(0), {out}, call.count);
      break;
    case Op::reduce_scatter: reduce_into(call, sources(own.begin * size), {out}, own.size); break;
    case Op::all_gather:
      for (int r = 0; r < ranks_; ++r) {
        copy(out + static_cast<std::size_t>(r) * stride, slot(r).payload,
             shard_of(call.count, ranks_, r).size * size);
      }
      break;
    case Op::all_to_all:
      for (int r = 0; r < ranks_; ++r) {
        copy(out + static_cast<std::size_t>(r) * own.size * size,
             slot(r).payload + own.begin * size, own.size * size);
      }
      break;
    case Op::broadcast: copy(out, slot(call.peer).payload, call.bytes()); break;
    case Op::send:
    case Op::recv: throw Error("send and recv do not go through the collective transport");
  }
}

std::string ShmTransport::doing(const Collective& call) const {
  return str("#", sequence_, " ", comm::describe(call));
}

void ShmTransport::await(Signal& signal, std::uint32_t goal, int rank, const Collective& call) {
  if (signal.spin(goal, spin_)) return;
  const auto since = Liveness::Clock::now();
  for (;;) {
    const std::uint32_t seen = signal.value.load(std::memory_order_acquire);
    if (reached(seen, goal)) return;
    liveness_->check(
        rank, since, [&] { return doing(call); }, [&] { return signal.at(goal); });
    signal.sleep(seen, kLookAtPeers);
  }
}

void ShmTransport::await_phase(const Collective& call, std::uint32_t goal) {
  for (int r = 0; r < ranks_; ++r) await(control_.block(r).phase, goal, r, call);
}

void ShmTransport::reduce_into(const Collective& call, const std::vector<const void*>& sources,
                               const std::vector<void*>& destinations, std::size_t count) {
  if (count == 0) return;
  const bool average = call.reduce == ReduceOp::avg;
  reduce({call.dtype, call.dtype, call.reduce, average ? ranks_ : 1}, sources, destinations, count);
  meter_->copied(count * size_of(call.dtype) * destinations.size());
}

void ShmTransport::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  copy_bytes(to, from, bytes);
  meter_->copied(bytes);
}

}  // namespace tessera::comm::shm
