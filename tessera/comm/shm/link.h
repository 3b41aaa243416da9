#pragma once

#include <chrono>

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
    seconds += static_cast<double>(ring_bytes(call, ranks, rank)) / link.bandwidth;
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace tessera::comm::shm
