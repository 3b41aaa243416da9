#include "tessera/checkpoint/shard.h"

#include <algorithm>
#include <cstring>

namespace tessera::checkpoint {

void Shard::copy(std::int64_t begin, std::int64_t count, std::byte* into) const {
  if (fetch) {
    fetch(begin, count, into);
    return;
  }
  const std::int64_t size = bytes_of(dtype);
  std::memcpy(into, data + begin * size, static_cast<std::size_t>(count * size));
}

std::vector<Run> cut(const std::vector<Run>& runs, std::int64_t begin, std::int64_t count) {
  std::vector<Run> out;
  for (const Run& run : runs) {
    const std::int64_t from = std::max(run.local, begin);
    const std::int64_t to = std::min(run.local + run.count, begin + count);
    if (from < to) out.push_back({run.whole + from - run.local, from - begin, to - from});
  }
  return out;
}

std::int64_t count_of(const std::vector<Run>& runs) {
  std::int64_t count = 0;
  for (const Run& run : runs) count += run.count;
  return count;
}

std::vector<StridedRun> to_strided_runs(const std::vector<Run>& runs) {
  std::vector<StridedRun> strided_runs;
  for (const Run& run : runs) {
    if (run.count == 0) continue;
    if (!strided_runs.empty()) {
      StridedRun& last = strided_runs.back();
      const std::int64_t step = run.whole - (last.whole + (last.times - 1) * last.stride);
      if (step == last.count && last.times == 1) {
        last.count += run.count;
        continue;
      }
      if (run.count == last.count && step > last.count &&
          (last.times == 1 || step == last.stride)) {
        last.stride = step;
        ++last.times;
        continue;
      }
    }
    strided_runs.push_back({run.whole, run.count, 1, 0});
  }
  return strided_runs;
}

std::vector<Run> to_runs(const std::vector<StridedRun>& strided_runs) {
  std::vector<Run> runs;
  std::int64_t local = 0;
  for (const StridedRun& run : strided_runs) {
    for (std::int64_t i = 0; i < run.times; ++i) {
      runs.push_back({run.whole + i * run.stride, local, run.count});
      local += run.count;
    }
  }
  return runs;
}

std::vector<Run> uncovered(std::vector<Run> runs, std::int64_t elements) {
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.whole < b.whole; });
  std::vector<Run> gaps;
  std::int64_t at = 0;
  for (const Run& run : runs) {
    if (run.whole > at) gaps.push_back({at, 0, run.whole - at});
    at = std::max(at, run.whole + run.count);
  }
  if (at < elements) gaps.push_back({at, 0, elements - at});
  return gaps;
}

}  // namespace tessera::checkpoint
