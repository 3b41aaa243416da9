#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "tessera/comm/backend.h"
#include "tessera/comm/collective.h"

namespace tessera::comm::shm {

// Returns the duration of a call as a ring over such a link.
inline std::chrono::nanoseconds link_time(const LinkOptions& link, const Collective& call,
                                          int ranks, int rank) {
  double steps = ranks - 1;
  if (call.op == Op::all_reduce || call.op == Op::barrier) steps *= 2;
  if (is_point_to_point(call.op)) steps = 1;
  double seconds = steps * link.latency;
  if (link.bandwidth > 0) {
    std::uint64_t bytes = ring_bytes(call, ranks, rank);
    if (call.counts) {  // a rank may receive more than it sends
      const std::size_t others =
          received_count(call, ranks, rank) - call.counts->out[static_cast<std::size_t>(rank)];
      bytes = std::max<std::uint64_t>(bytes, others * size_of(call.dtype));
    }
    seconds += static_cast<double>(bytes) / link.bandwidth;
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace tessera::comm::shm
