// Times of the kernels of one call on a GPU.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera {

// Returns a kernel's name without its template arguments and parameters.
inline std::string short_kernel_name(std::string name) {
  for (const char* noise : {"void ", "tessera::kernels::cuda::", "(anonymous namespace)::",
                            "at::native::", "<unnamed>::"}) {
    for (std::size_t at = name.find(noise); at != std::string::npos; at = name.find(noise)) {
      name.erase(at, std::string(noise).size());
    }
  }
  return name.substr(0, 96);
}

// Runs the step and prints its kernels, longest first.
template <class F>
void print_kernel_times(F&& step) {
  namespace prof = torch::autograd::profiler;
  namespace impl = torch::profiler::impl;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {impl::ActivityType::CUDA};
  prof::prepareProfiler(config, activities);
  prof::enableProfiler(config, activities);
  step();
  torch::cuda::synchronize();
  const auto result = prof::disableProfiler();
  struct Row {
    double ms = 0;
    int calls = 0;
  };
  std::map<std::string, Row> rows;
  double total = 0;
  for (const prof::KinetoEvent& event : result->events()) {
    if (event.deviceType() != c10::kCUDA) continue;
    Row& row = rows[short_kernel_name(event.name())];
    row.ms += static_cast<double>(event.durationNs()) * 1e-6;
    total += static_cast<double>(event.durationNs()) * 1e-6;
    ++row.calls;
  }
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  std::printf(
      "kernels of one step: %.2f ms\n\n| ms | calls | us each | kernel |\n|---|---|---|---|\n",
      total);
  for (std::size_t i = 0; i < std::min<std::size_t>(sorted.size(), 36); ++i) {
    const Row& row = sorted[i].second;
    std::printf("| %.3f | %d | %.1f | %s |\n", row.ms, row.calls, 1e3 * row.ms / row.calls,
                sorted[i].first.c_str());
  }
}

}  // namespace tessera
