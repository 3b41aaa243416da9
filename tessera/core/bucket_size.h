#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

// [Note: bucket size] What one collective of gradients carries where nobody says how much: a
// sixteenth of a rank's gradients, so that the two or three buckets that stages 2 and 3 hold beside
// their share are small against what they save, and many are left to overlap with; but at least 256
// KiB, below which a call costs more than its bytes, and at most 25 MB, above which no link gets
// faster.
constexpr std::int64_t default_bucket_bytes(std::int64_t gradient_bytes) {
  return std::clamp<std::int64_t>(gradient_bytes / 16, 256 << 10, 25'000'000);
}

}  // namespace tessera
