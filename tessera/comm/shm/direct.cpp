// Collectives on buffers in symmetric memory: without staging, every byte is read and written once.

#include <cstring>

#include "tessera/comm/shm/transport.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::shm {

// Returns the address of rank r's buffer in this process.
std::byte* ShmTransport::resolve(const Collective& call, int r, Address Header::*which) const {
  const Address& address = slot(r).header.*which;
  std::byte* at = memories_->resolve(address, r);
  if (at != nullptr) return at;
  liveness_->fail(Failure::Kind::usage, liveness_->members()[static_cast<std::size_t>(rank_)],
                  str(doing(call), " of group ", liveness_->group(), ": rank ", r,
                      " passed symmetric memory number ", address.memory, ", which rank ", rank_,
                      " has already released; keep it until all ranks are done with it"));
}

// Returns the addresses of all ranks' buffers in this process; empty if one is in private memory.
std::vector<std::byte*> ShmTransport::resolve_all(const Collective& call,
                                                  Address Header::*which) const {
  std::vector<std::byte*> all;
  for (int r = 0; r < ranks_; ++r) {
    if ((slot(r).header.*which).memory == 0) return {};
  }
  for (int r = 0; r < ranks_; ++r) all.push_back(resolve(call, r, which));
  return all;
}

// reduce_scatter and all_gather, part by part.
void ShmTransport::direct_parts(const Collective& call, const std::vector<std::byte*>& in) {
  const std::size_t size = size_of(call.dtype);
  auto* out = static_cast<std::byte*>(call.out);
  const std::vector<std::size_t> whole = {call.count};
  std::size_t large = 0;                         // bytes of all previous parts
  std::vector<std::size_t> small(in.size(), 0);  // bytes of each rank's shards of them
  std::size_t own_bytes = 0;                     // bytes of this rank's shards, with copies
  for (const std::size_t count : call.parts ? *call.parts : whole) {
    const auto shard_at = [&](int r) {
      const std::size_t begin = shard_of(count, ranks_, r).begin * size;
      return call.in_place() ? large + begin : small[static_cast<std::size_t>(r)];
    };
    if (call.op == Op::reduce_scatter) {
      const Shard own = own_shard(call, count, ranks_, rank_);
      std::vector<const void*> from;
      for (const std::byte* buffer : in) from.push_back(buffer + large + own.begin * size);
      const std::size_t at = call.in_place() ? large + own.begin * size : own_bytes;
      reduce_into(call, from, {out + at}, own.size);
      own_bytes += own.size * size;
    } else {
      for (int i = 0; i < ranks_; ++i) {
        const int r = (rank_ + i) % ranks_;  // so that ranks do not all read from the same peer
        const Shard shard = shard_of(count, ranks_, r);
        if (r == rank_ && call.in_place()) continue;
        copy(out + large + shard.begin * size, in[static_cast<std::size_t>(r)] + shard_at(r),
             shard.size * size);
      }
    }
    large += count * size;
    for (int r = 0; r < ranks_; ++r) {
      small[static_cast<std::size_t>(r)] += shard_of(count, ranks_, r).size * size;
    }
  }
}

// Returns false if a buffer is not in symmetric memory. All ranks return the same value.
bool ShmTransport::direct(const Collective& call) {
  const std::size_t size = size_of(call.dtype);
  const Shard own = shard_of(call.count, ranks_, rank_);
  const std::size_t begin = own.begin * size;
  auto* out = static_cast<std::byte*>(call.out);

  if (call.op == Op::broadcast) {
    if (slot(call.peer).header.in.memory == 0) return false;
    copy(out, resolve(call, call.peer, &Header::in), call.bytes());
  } else {
    const std::vector<std::byte*> in = resolve_all(call, &Header::in);
    if (in.empty()) return false;
    const auto at = [&](const std::vector<std::byte*>& buffers) {
      std::vector<const void*> all;
      for (const std::byte* buffer : buffers) all.push_back(buffer + begin);
      return all;
    };
    switch (call.op) {
      case Op::all_reduce: {
        std::vector<void*> to;
        for (std::byte* buffer : resolve_all(call, &Header::out)) to.push_back(buffer + begin);
        if (to.empty()) return false;
        reduce_into(call, at(in), to, own.size);
        break;
      }
      case Op::reduce: {
        if (slot(call.peer).header.out.memory == 0) return false;
        reduce_into(call, at(in), {resolve(call, call.peer, &Header::out) + begin}, own.size);
        break;
      }
      case Op::reduce_scatter:
      case Op::all_gather: direct_parts(call, in); break;
      case Op::all_to_all:
        for (int i = 0; i < ranks_; ++i) {
          const auto r = static_cast<std::size_t>((rank_ + i) % ranks_);
          copy(out + r * own.size * size, in[r] + begin, own.size * size);
        }
        break;
      default: return false;
    }
  }
  // No rank may access its buffers again while a peer still reads or writes them.
  control_.block(rank_).phase.raise(++phase_);
  await_phase(call, phase_);
  return true;
}

}  // namespace tessera::comm::shm
