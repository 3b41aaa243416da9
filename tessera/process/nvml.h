#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::process {

// GPU state read from NVML. Values that NVML does not provide are 0.
struct GpuReading {
  int utilization = 0;           // percent of the last sample period in which a kernel ran
  std::int64_t memory_used = 0;  // bytes, by all processes
  int sm_mhz = 0;
  double power_w = 0;
  int temperature_c = 0;

  friend bool operator==(const GpuReading&, const GpuReading&) = default;
};

// Subset of NVML's C interface, redeclared here. The library is part of the driver and loaded at
// run time, so no header is needed and nothing is linked. Missing functions are null.
struct NvmlApi {
  using Device = void*;
  struct Utilization {
    unsigned gpu = 0, memory = 0;
  };
  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };
  int (*init)() = nullptr;
  int (*driver_version)(char* text, unsigned length) = nullptr;
  int (*device_by_bus)(const char* bus, Device*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*clock)(Device, int which, unsigned* mhz) = nullptr;
  int (*power)(Device, unsigned* milliwatts) = nullptr;
  int (*temperature)(Device, int sensor, unsigned* celsius) = nullptr;
};

// Returns the initialized NVML of this process; null without a driver.
const NvmlApi* nvml();
// Returns the driver version ("580.65.06"), or "".
std::string driver_version();

// Reads the state of one GPU.
class GpuMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  // Takes a CUDA device number. read() returns nullopt if it is negative or NVML is missing.
  explicit GpuMonitor(int cuda_device);
  GpuMonitor(const NvmlApi& api, NvmlApi::Device device) : api_(&api), device_(device) {}

  // Queries NVML at most twice a second and returns the last reading in between: some queries take
  // a millisecond.
  std::optional<GpuReading> read(Clock::time_point now = Clock::now());

 private:
  const NvmlApi* api_ = nullptr;
  NvmlApi::Device device_ = nullptr;
  GpuReading last_;
  std::optional<Clock::time_point> read_at_;
};

}  // namespace tessera::process
