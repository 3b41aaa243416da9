#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/dtype.h"

namespace tessera::comm {

// The operations of a group, in the order of TrafficCounts::calls.
enum class Op : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  barrier,
  send,
  recv,
};
inline constexpr int kOpCount = 9;

// "all_reduce": for messages and traces.
const char* name(Op op) noexcept;
// Of two ranks; the others are of all ranks of the group.
constexpr bool is_point_to_point(Op op) noexcept { return op == Op::send || op == Op::recv; }
// Adds up (or takes the least or greatest of) what ranks have, so their order matters for the bits.
constexpr bool is_reduction(Op op) noexcept {
  return op == Op::all_reduce || op == Op::reduce_scatter || op == Op::reduce;
}

// What a transfer is charged to: gradients and parameters are `model` traffic, which the planner
// predicts byte by byte; norms, losses, buffers and everything else is `control`.
enum class Traffic : std::uint8_t { model, control };

// [Note: shards] A buffer of `count` elements over N ranks is cut into N shards of
// ceil(count / N) elements; the last ones are shorter, or empty. All of Tessera cuts this way.
struct Shard {
  std::size_t begin = 0;
  std::size_t size = 0;
};
// Elements from the beginning of a shard to that of the next, whether they are there or not.
std::size_t shard_stride(std::size_t count, int ranks) noexcept;
// What a rank has of a buffer.
Shard shard_of(std::size_t count, int ranks, int rank) noexcept;

// One operation as one rank calls it. Counts are in elements and always of the whole buffer:
//   all_reduce, broadcast, reduce   in and out: count. `out` of reduce is used on the root only.
//   reduce_scatter                  in: count, out: this rank's shard. In place: out = in + begin.
//   all_gather                      in: this rank's shard, out: count. In place: in = out + begin.
//   all_to_all                      in: count, cut into one shard per destination;
//                                   out: N times this rank's shard, in order of the source.
//   send, recv                      count, to or from `peer`.
// `in == out` is allowed for all_reduce, broadcast and reduce.
//
// [Note: parts] With `parts`, the buffer of a reduce_scatter or all_gather is several buffers in a
// row, each cut into shards of its own: so many parameters travel in one call, and which elements a
// rank owns does not depend on what travels together. The small buffer is this rank's shards in a
// row; or, where it is the large one itself (in == out), each shard lies in its place there.
//
// [Note: copies] With `copies` R a reduce_scatter over N ranks cuts the buffer into N / R shards,
// and rank r gets shard r mod N / R: R ranks get the same one. It is summed over all N ranks in
// their order, as without copies, so its bits do not depend on R. Not in place. Only where ranks
// share memory; elsewhere a reduce_scatter and an all_reduce do the same with another order.
struct Collective {
  Op op = Op::barrier;
  DType dtype = DType::u8;
  ReduceOp reduce = ReduceOp::sum;
  Traffic traffic = Traffic::model;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  int peer = -1;      // root of broadcast and reduce, other side of send and recv
  std::string label;  // the tensor's name in messages; ranks must agree on it
  std::shared_ptr<const std::vector<std::size_t>> parts =
      nullptr;  // elements of each; null: one part

  // all_gather of a buffer that all ranks have mapped and keep their shards in: there is nothing to
  // copy, only to know that every rank has come this far.
  bool shared = false;

  int copies = 1;  // of each shard, [Note: copies]; divides the ranks

  bool in_place() const noexcept { return parts && in == out; }
  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

// The shard of a buffer of `count` elements that a rank sends to all_gather or gets from
// reduce_scatter, if the buffer travels in this call.
Shard own_shard(const Collective& call, std::size_t count, int ranks, int rank) noexcept;
// Elements of all shards of this rank together.
std::size_t own_count(const Collective& call, int ranks, int rank) noexcept;

// The calls, one per part, that do together what `call` does.
void for_each_part(const Collective& call, int ranks, int rank,
                   const std::function<void(const Collective& part)>& run);

// "all_reduce(sum, 1024 × f32, \"layer.3\")"
std::string describe(const Collective& call);

// Bytes this rank sends if the operation runs as a ring: (N-1) padded shards for reduce_scatter,
// all_gather and all_to_all, twice that for all_reduce, everything for send. In a ring broadcast
// all but the last rank forward the buffer; in a ring reduce all but the root do.
std::uint64_t ring_bytes(const Collective& call, int ranks, int rank) noexcept;

// Throws UsageError when the call cannot be right whatever the other ranks do: a peer outside the
// group, a missing buffer, a send to oneself.
void check(const Collective& call, int ranks, int rank);

}  // namespace tessera::comm
