#include "tessera/comm/collective.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "tessera/comm/traffic.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/shard.h"
#include "tessera/core/text.h"

namespace tessera::comm {

const char* name(Op op) noexcept {
  switch (op) {
    case Op::all_reduce: return "all_reduce";
    case Op::reduce_scatter: return "reduce_scatter";
    case Op::all_gather: return "all_gather";
    case Op::broadcast: return "broadcast";
    case Op::reduce: return "reduce";
    case Op::all_to_all: return "all_to_all";
    case Op::barrier: return "barrier";
    case Op::send: return "send";
    case Op::recv: return "recv";
  }
  return "?";
}

const char* name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
  }
  return "unknown operation";
}

std::size_t shard_stride(std::size_t count, int ranks) noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  return count / n + (count % n != 0);
}

Shard shard_of(std::size_t count, int ranks, int rank) noexcept {
  const auto stride = static_cast<std::int64_t>(shard_stride(count, ranks));
  const ShardRange own = nth_shard(static_cast<std::int64_t>(count), stride, rank);
  return {as_size(own.begin), as_size(own.size)};
}

Shard own_shard(const Collective& call, std::size_t count, int ranks, int rank) noexcept {
  const int shards = ranks / call.copies;
  return shard_of(count, shards, rank % shards);
}

std::size_t own_count(const Collective& call, int ranks, int rank) noexcept {
  if (!call.parts) return own_shard(call, call.count, ranks, rank).size;
  std::size_t sum = 0;
  for (const std::size_t part : *call.parts) sum += own_shard(call, part, ranks, rank).size;
  return sum;
}

std::size_t received_count(const Collective& call, int ranks, int rank) noexcept {
  if (call.counts) return part_begin(call.counts->out, ranks);
  return shard_of(call.count, ranks, rank).size * static_cast<std::size_t>(ranks);
}

std::size_t part_begin(const std::vector<std::size_t>& counts, int rank) noexcept {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

void for_each_part(const Collective& call, int ranks, int rank,
                   const std::function<void(const Collective& part)>& run) {
  if (!call.parts) return run(call);
  const std::size_t size = size_of(call.dtype);
  const bool gather = call.op == Op::all_gather;
  const auto* in = static_cast<const std::byte*>(call.in);
  auto* out = static_cast<std::byte*>(call.out);
  std::size_t large = 0, small = 0;  // offsets of the part in bytes
  for (const std::size_t count : *call.parts) {
    const Shard own = own_shard(call, count, ranks, rank);
    const std::size_t shard_at = call.in_place() ? large + own.begin * size : small;
    Collective part = call;
    part.parts = nullptr;
    part.count = count;
    part.in = in + (gather ? shard_at : large);
    part.out = out + (gather ? large : shard_at);
    if (count > 0) run(part);
    large += count * size;
    small += own.size * size;
  }
}

std::string describe(const Collective& call) {
  if (call.op == Op::barrier && call.count == 0 && call.label.empty()) return "barrier()";
  std::string text = str(name(call.op), "(");
  if (is_reduction(call.op)) text += str(name(call.reduce), ", ");
  text += str(call.count, " × ", name(call.dtype));
  if (call.counts) text += ", unequal counts";
  if (call.op == Op::broadcast || call.op == Op::reduce) text += str(", root ", call.peer);
  if (call.op == Op::send) text += str(", to ", call.peer);
  if (call.op == Op::recv) text += str(", from ", call.peer);
  if (!call.label.empty()) text += str(", ", quote(call.label));
  return text + ")";
}

std::uint64_t ring_bytes(const Collective& call, int ranks, int rank) noexcept {
  if (ranks <= 1) return 0;
  if (call.copies > 1) {
    Collective inside = call, across = call;
    inside.copies = across.copies = 1;
    across.op = Op::all_reduce;
    across.parts = nullptr;
    across.count = own_count(call, ranks, 0);  // the longest shards
    const int shards = ranks / call.copies;
    return ring_bytes(inside, shards, rank % shards) +
           ring_bytes(across, call.copies, rank / shards);
  }
  const std::uint64_t others = static_cast<std::uint64_t>(ranks) - 1;
  std::uint64_t stride = 0;
  if (call.parts) {
    for (const std::size_t part : *call.parts) stride += shard_stride(part, ranks);
  } else {
    stride = shard_stride(call.count, ranks);
  }
  const std::uint64_t shards = others * stride * size_of(call.dtype);
  switch (call.op) {
    case Op::all_reduce: return 2 * shards;
    case Op::reduce_scatter:
    case Op::all_gather: return shards;
    case Op::all_to_all: {
      if (!call.counts) return shards;
      return (call.count - call.counts->in[as_size(rank)]) * size_of(call.dtype);
    }
    case Op::broadcast: return (rank + 1) % ranks == call.peer ? 0 : call.bytes();
    case Op::reduce: return rank == call.peer ? 0 : call.bytes();
    case Op::send: return call.bytes();
    case Op::barrier:
    case Op::recv: return 0;
  }
  return 0;
}

namespace {

// Returns whether the output overlaps input that this rank or a peer has not read yet.
bool overlaps(const Collective& call, int ranks, int rank, std::size_t in, std::size_t out) {
  const std::size_t size = size_of(call.dtype);
  const auto from = reinterpret_cast<std::uintptr_t>(call.in);
  const auto to = reinterpret_cast<std::uintptr_t>(call.out);
  if (from >= to + out * size || to >= from + in * size) return false;
  const std::size_t begin = shard_of(call.count, ranks, rank).begin * size;
  switch (call.op) {
    case Op::reduce_scatter: return call.copies > 1 || to != from + begin;
    case Op::all_gather: return from != to + begin;
    case Op::all_to_all: return ranks > 1;
    default: return from != to;
  }
}

}  // namespace

void check_counts(const Collective& call, int ranks, int rank) {
  const auto reject = [&](const auto&... problem) {
    throw UsageError(str(describe(call), " on rank ", rank, ": ", problem...));
  };
  if (call.op != Op::all_to_all) reject("only all_to_all accepts counts");
  const ExchangeCounts& counts = *call.counts;
  for (const bool in : {true, false}) {
    const std::vector<std::size_t>& each = in ? counts.in : counts.out;
    if (each.size() == as_size(ranks)) continue;
    reject(in ? "in_counts" : "out_counts", " has ", each.size(), " counts; must be ", ranks,
           ", one for every rank of the group");
  }
  std::size_t sum = 0;
  for (const std::size_t count : counts.in) {
    // Compared one by one, so that the sum cannot wrap.
    if (count > call.count - sum) {
      reject("the sum of in_counts is greater than the ", call.count, " elements of the input; ",
             "must be equal");
    }
    sum += count;
  }
  if (sum != call.count) {
    reject("the sum of in_counts is ", sum, "; must be ", call.count, ", the size of the input");
  }
  if (counts.in[as_size(rank)] != counts.out[as_size(rank)]) {
    reject("in_counts[", rank, "] is ", counts.in[as_size(rank)], ", but out_counts[", rank,
           "] is ", counts.out[as_size(rank)], "; both must be the number of elements that this ",
           "rank keeps");
  }
}

void check(const Collective& call, int ranks, int rank) {
  const bool needs_peer =
      call.op == Op::broadcast || call.op == Op::reduce || is_point_to_point(call.op);
  if (needs_peer && (call.peer < 0 || call.peer >= ranks)) {
    throw UsageError(str(describe(call), " on rank ", rank, ": there is no rank ", call.peer,
                         " in this group; ranks are 0 to ", ranks - 1));
  }
  if (is_point_to_point(call.op) && call.peer == rank) {
    throw UsageError(
        str(describe(call), " on rank ", rank, ": the other side must be another rank"));
  }
  if (call.parts) {
    std::size_t sum = 0;
    for (const std::size_t part : *call.parts) sum += part;
    if (sum != call.count || (call.op != Op::all_gather && call.op != Op::reduce_scatter)) {
      throw UsageError(str(describe(call), " on rank ", rank, ": the parts have ", sum,
                           " elements; must be ", call.count,
                           ". Only all_gather and reduce_scatter accept parts"));
    }
  }
  if (call.copies < 1 || ranks % call.copies != 0 ||
      (call.copies > 1 && (call.op != Op::reduce_scatter || call.in_place()))) {
    throw UsageError(str(describe(call), " on rank ", rank, ": copies = ", call.copies,
                         " must divide the ", ranks,
                         " ranks, and must be 1 except in a reduce_scatter that is not in place"));
  }
  if (call.shared && call.op != Op::all_gather) {
    throw UsageError(str(describe(call), " on rank ", rank, ": only all_gather may be shared"));
  }
  if (call.counts) check_counts(call, ranks, rank);
  const std::size_t own = own_count(call, ranks, rank);
  const std::size_t received = call.op == Op::all_to_all ? received_count(call, ranks, rank) : own;
  const bool shard_in = call.op == Op::all_gather;
  const bool shard_out = call.op == Op::reduce_scatter || call.op == Op::all_to_all;
  const bool no_in = call.op == Op::barrier || call.op == Op::recv ||
                     (call.op == Op::broadcast && rank != call.peer);
  const bool no_out =
      call.op == Op::barrier || call.op == Op::send || (call.op == Op::reduce && rank != call.peer);
  if (!no_in && call.in == nullptr && (shard_in ? own : call.count) > 0) {
    throw UsageError(str(describe(call), " on rank ", rank, ": the input buffer is null"));
  }
  if (!no_out && call.out == nullptr && (shard_out ? received : call.count) > 0) {
    throw UsageError(str(describe(call), " on rank ", rank, ": the output buffer is null"));
  }
  if (no_in || no_out || call.parts || call.shared) return;
  const std::size_t out = shard_out ? received : call.count;
  if (overlaps(call, ranks, rank, shard_in ? own : call.count, out)) {
    throw UsageError(str(describe(call), " on rank ", rank,
                         ": input and output overlap; pass separate buffers",
                         call.op == Op::all_to_all ? "" : ", or operate exactly in place"));
  }
}

TrafficCounts operator-(const TrafficCounts& later, const TrafficCounts& earlier) noexcept {
  TrafficCounts difference{later.sent_bytes - earlier.sent_bytes,
                           later.control_bytes - earlier.control_bytes,
                           later.copied_bytes - earlier.copied_bytes,
                           later.busy_ns - earlier.busy_ns,
                           {}};
  for (std::size_t op = 0; op < later.calls.size(); ++op) {
    difference.calls[op] = later.calls[op] - earlier.calls[op];
  }
  return difference;
}

TrafficCounts operator+(const TrafficCounts& one, const TrafficCounts& other) noexcept {
  TrafficCounts sum{one.sent_bytes + other.sent_bytes,
                    one.control_bytes + other.control_bytes,
                    one.copied_bytes + other.copied_bytes,
                    one.busy_ns + other.busy_ns,
                    {}};
  for (std::size_t op = 0; op < one.calls.size(); ++op) {
    sum.calls[op] = one.calls[op] + other.calls[op];
  }
  return sum;
}

void TrafficMeter::charge(const Collective& call, int ranks, int rank) noexcept {
  auto& counter = call.traffic == Traffic::model ? sent_ : control_;
  // A call with copies replaces calls of two other groups. Its caller counts the bytes there.
  if (call.copies == 1) {
    counter.fetch_add(ring_bytes(call, ranks, rank), std::memory_order_relaxed);
  }
  calls_[static_cast<std::size_t>(call.op)].fetch_add(1, std::memory_order_relaxed);
}

void TrafficMeter::add(const TrafficCounts& counts) noexcept {
  sent_.fetch_add(counts.sent_bytes, std::memory_order_relaxed);
  control_.fetch_add(counts.control_bytes, std::memory_order_relaxed);
  copied_.fetch_add(counts.copied_bytes, std::memory_order_relaxed);
  busy_.fetch_add(counts.busy_ns, std::memory_order_relaxed);
  for (std::size_t op = 0; op < calls_.size(); ++op) {
    calls_[op].fetch_add(counts.calls[op], std::memory_order_relaxed);
  }
}

TrafficCounts TrafficMeter::counts() const noexcept {
  TrafficCounts counts;
  counts.sent_bytes = sent_.load(std::memory_order_relaxed);
  counts.control_bytes = control_.load(std::memory_order_relaxed);
  counts.copied_bytes = copied_.load(std::memory_order_relaxed);
  counts.busy_ns = busy_.load(std::memory_order_relaxed);
  for (std::size_t op = 0; op < calls_.size(); ++op) {
    counts.calls[op] = calls_[op].load(std::memory_order_relaxed);
  }
  return counts;
}

}  // namespace tessera::comm
