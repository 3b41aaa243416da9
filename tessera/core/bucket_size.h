#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

// [Note: bucket size] Default size of a gradient bucket: one sixteenth of a rank's gradients. The
// two or three buckets that stages 2 and 3 hold in addition to their shard are then small compared
// to the memory they save, and there are enough buckets to overlap. At least 256 KiB, below which
// the latency of a call exceeds its transfer time. At most 25 MB, above which no link gets faster.
constexpr std::int64_t default_bucket_bytes(std::int64_t gradient_bytes) {
  return std::clamp<std::int64_t>(gradient_bytes / 16, 256 << 10, 25'000'000);
}

}  // namespace tessera
