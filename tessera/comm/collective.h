#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/call.h"
#include "tessera/comm/dtype.h"

namespace tessera::comm {

// Elements that one rank exchanges with every rank in an all_to_all, in rank order.
//
// [Note: unequal counts] With `counts`, an all_to_all sends counts->in[r] elements to rank r, and
// receives counts->out[r] elements from it. Both buffers have these parts one after another in rank
// order, without padding. The calls of the ranks may differ in their counts, which are therefore
// not part of Record. in[s] of rank r must equal out[r] of rank s. Before they move data, backends
// for host memory compare the counts of all pairs, so that a difference is an error on every rank.
// NCCL compares them if it compares a call before its launch: [Note: agreement] in
// nccl/backend.cpp.
struct ExchangeCounts {
  std::vector<std::size_t> in;
  std::vector<std::size_t> out;
};

// Arguments of one operation on one rank. Counts are in elements, always of the whole buffer:
//   all_reduce, broadcast, reduce   in and out: count. `out` of reduce is used on the root only.
//   reduce_scatter                  in: count, out: this rank's shard. In place: out = in + begin.
//   all_gather                      in: this rank's shard, out: count. In place: in = out + begin.
//   all_to_all                      in: count, split into one shard per destination;
//                                   out: N times this rank's shard, in order of the source.
//                                   With unequal counts, in: count, out: the sum of counts->out.
//   send, recv                      count, to or from `peer`.
// `in == out` is allowed for all_reduce, broadcast and reduce.
// Parts and copies: [Note: parts] and [Note: copies] in call.h.
struct Collective {
  Op op = Op::barrier;
  DType dtype = DType::u8;
  ReduceOp reduce = ReduceOp::sum;
  Traffic traffic = Traffic::model;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  int peer = -1;      // root of broadcast and reduce, other side of send and recv
  std::string label;  // the tensor's name in messages; the same on every rank
  std::shared_ptr<const std::vector<std::size_t>> parts =
      nullptr;  // number of elements of each part; null: one part

  // all_gather of a buffer in memory that all ranks have mapped: every rank has written its shard
  // in place, so nothing is copied and the call is only a barrier.
  bool shared = false;

  int copies = 1;  // of each shard; must divide the number of ranks

  // all_to_all: [Note: unequal counts]. Null: shards.
  std::shared_ptr<const ExchangeCounts> counts = nullptr;

  bool in_place() const noexcept { return parts && in == out; }
  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

// Returns the shard that a rank contributes to all_gather or gets from reduce_scatter, for a buffer
// or part of `count` elements in this call.
Shard own_shard(const Collective& call, std::size_t count, int ranks, int rank) noexcept;
// Returns the number of elements in all shards of this rank.
std::size_t own_count(const Collective& call, int ranks, int rank) noexcept;
// Returns the number of elements that an all_to_all writes to `out`.
std::size_t received_count(const Collective& call, int ranks, int rank) noexcept;
// Returns the sum of the counts of the ranks before `rank`: the beginning of its part of a buffer.
std::size_t part_begin(const std::vector<std::size_t>& counts, int rank) noexcept;

// Calls `run` with one call per non-empty part; together they are equivalent to `call`.
void for_each_part(const Collective& call, int ranks, int rank,
                   const std::function<void(const Collective& part)>& run);

// "all_reduce(sum, 1024 × f32, \"layer.3\")"
std::string describe(const Collective& call);

// Returns the bytes that this rank sends if the operation runs as a ring: (N-1) padded shards for
// reduce_scatter, all_gather and all_to_all, twice that for all_reduce, the whole buffer for send,
// and exactly the elements for other ranks for an all_to_all with unequal counts.
// In a ring broadcast all ranks but the last forward the buffer; in a ring reduce all but the root.
std::uint64_t ring_bytes(const Collective& call, int ranks, int rank) noexcept;

// Part of check(), for a call with unequal counts whose buffers are not set.
void check_counts(const Collective& call, int ranks, int rank);

// Throws UsageError if the call is invalid regardless of the other ranks: a peer outside the group,
// a missing buffer, a send to itself.
void check(const Collective& call, int ranks, int rank);

}  // namespace tessera::comm
