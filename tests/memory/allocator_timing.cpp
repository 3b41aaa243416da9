// Benchmark of the cache: time to allocate and fill tensors, without and with it.

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "tessera/memory/allocator.h"

namespace {

// Returns the microseconds of at::empty + fill_, the median of several rounds.
double microseconds(std::int64_t bytes, bool fill) {
  std::vector<double> times;
  const int calls = static_cast<int>(std::max<std::int64_t>(20, (64 << 20) / bytes));
  for (int round = 0; round < 9; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      at::Tensor x = at::empty({bytes / 4}, at::kFloat);
      if (fill) x.fill_(1.0f);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count() / calls * 1e6);
  }
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  return times[4];
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const std::vector<std::int64_t> sizes = {1 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20};
  std::vector<double> plain;
  for (const std::int64_t bytes : sizes) {
    plain.push_back(microseconds(bytes, false));
    plain.push_back(microseconds(bytes, true));
  }
  tessera::memory::install();
  const tessera::memory::OwnerScope owner(std::make_shared<tessera::memory::Ledger>());
  std::printf("%10s %26s %26s\n", "bytes", "empty: before, after (us)", "filled: before, after");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double empty = microseconds(sizes[i], false), filled = microseconds(sizes[i], true);
    std::printf("%10lld %13.2f %12.2f %13.1f %12.1f\n", static_cast<long long>(sizes[i]),
                plain[2 * i], empty, plain[2 * i + 1], filled);
  }
  return 0;
}
