#include "tessera/process/nvml.h"

#include <gtest/gtest.h>

#include <chrono>

namespace tessera::process {
namespace {

using namespace std::chrono_literals;

int queries = 0;  // number of queries

NvmlApi everything() {
  NvmlApi api;
  api.utilization = [](NvmlApi::Device, NvmlApi::Utilization* out) {
    *out = {97, 40};
    return 0;
  };
  api.memory = [](NvmlApi::Device, NvmlApi::Memory* out) {
    ++queries;
    *out = {1000, 300, 700};
    return 0;
  };
  api.clock = [](NvmlApi::Device, int which, unsigned* mhz) {
    *mhz = which == 1 ? 1980u : 1u;
    return 0;
  };
  api.power = [](NvmlApi::Device, unsigned* milliwatts) {
    *milliwatts = 695'500;
    return 0;
  };
  api.temperature = [](NvmlApi::Device, int, unsigned* celsius) {
    *celsius = 61;
    return 0;
  };
  return api;
}

TEST(Nvml, ReadsAllValues) {
  const NvmlApi api = everything();
  GpuMonitor monitor(api, nullptr);
  const auto reading = monitor.read();
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(*reading, (GpuReading{97, 700, 1980, 695.5, 61}));
}

TEST(Nvml, ReturnsZeroForMissingValues) {
  NvmlApi api = everything();
  api.power = [](NvmlApi::Device, unsigned* milliwatts) {
    *milliwatts = 5;
    return 3;  // NVML_ERROR_NOT_SUPPORTED
  };
  api.clock = nullptr;  // a driver that is too old
  GpuMonitor monitor(api, nullptr);
  EXPECT_EQ(*monitor.read(), (GpuReading{97, 700, 0, 0, 61}));
}

TEST(Nvml, QueriesAtMostTwiceASecond) {
  const NvmlApi api = everything();
  GpuMonitor monitor(api, nullptr);
  queries = 0;
  const GpuMonitor::Clock::time_point start{};
  for (auto at = 0ms; at < 10s; at += 20ms) monitor.read(start + at);
  EXPECT_EQ(queries, 20);
}

TEST(Nvml, ReturnsNothingWithoutAGpu) {
  GpuMonitor none(-1);
  EXPECT_FALSE(none.read().has_value());
  if (nvml() == nullptr) {
    EXPECT_EQ(driver_version(), "");
    GpuMonitor absent(0);
    EXPECT_FALSE(absent.read().has_value());
    return;
  }
  EXPECT_NE(driver_version(), "");
  GpuMonitor first(0);
  if (const auto reading = first.read()) {
    EXPECT_GT(reading->memory_used, 0);
    EXPECT_GE(reading->utilization, 0);
    EXPECT_LE(reading->utilization, 100);
  }
}

}  // namespace
}  // namespace tessera::process
