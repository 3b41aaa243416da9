#include "tessera/parallel/frozen.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>

#include "tessera/core/fingerprint.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/nn/parallel_for.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/parallel/state_shards.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 22;  // elements

std::uint64_t sum_of(const at::Tensor& values, const std::vector<Run>& runs, std::uint64_t stream) {
  std::atomic<std::uint64_t> sum{0};
  for (const Run& run : runs) {
    for (std::int64_t at = 0; at < run.count; at += kBlock) {
      const std::int64_t count = std::min(kBlock, run.count - at);
      const at::Tensor some =
          values.narrow(0, run.local + at, count).to(at::kCPU).to(at::kBFloat16).contiguous();
      const auto* bits = static_cast<const std::uint16_t*>(some.const_data_ptr());
      nn::parallel_for(0, count, 1 << 14, [&](std::int64_t from, std::int64_t end) {
        sum += tessera::fingerprint_of(bits + from, end - from, stream, run.whole + at + from);
      });
    }
  }
  return sum;
}

}  // namespace

std::string fingerprint_of_frozen(const Checkpointable& what) {
  const at::NoGradGuard no_grad;
  std::uint64_t sum = 0;
  bool any = false, half = false;
  for (const FrozenShard& shard : frozen_shards(what)) {
    sum += sum_of(shard.values, shard.runs, stream_of(shard.param));
    any = true;
    half = half || shard.values.scalar_type() == at::kHalf;
  }
  std::uint64_t all = 0;
  bool anywhere = false;
  const std::string mine = any ? hex(sum) + (half ? str(kFingerprintOfHalf) : "") : std::string();
  for (const std::string& text : gather_texts(what.world, mine, "frozen parameters")) {
    if (text.empty()) continue;
    all += std::stoull(text, nullptr, 16);  // up to the first character that is not a digit
    half = half || text.back() == kFingerprintOfHalf;
    anywhere = true;
  }
  if (!anywhere) return "";
  return half ? str(kFingerprintOfHalf, hex(all)) : hex(all);
}

}  // namespace tessera::parallel
