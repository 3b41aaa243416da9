#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::process {

// What NVML says of a GPU at one moment. What it cannot say is 0.
struct GpuReading {
  int utilisation = 0;           // percent of the last fraction of a second that a kernel ran
  std::int64_t memory_used = 0;  // bytes, by all processes
  int sm_mhz = 0;
  double power_w = 0;
  int temperature_c = 0;

  friend bool operator==(const GpuReading&, const GpuReading&) = default;
};

// The part of NVML's C interface that we use, in our own words. The library belongs to the driver;
// we need no header and link nothing. A function that is not there is null.
struct NvmlApi {
  using Device = void*;
  struct Utilisation {
    unsigned gpu = 0, memory = 0;
  };
  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };
  int (*init)() = nullptr;
  int (*driver_version)(char* text, unsigned length) = nullptr;
  int (*device_by_bus)(const char* bus, Device*) = nullptr;
  int (*utilisation)(Device, Utilisation*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*clock)(Device, int which, unsigned* mhz) = nullptr;
  int (*power)(Device, unsigned* milliwatts) = nullptr;
  int (*temperature)(Device, int sensor, unsigned* celsius) = nullptr;
};

// That of this process, started; null where there is no driver.
const NvmlApi* nvml();
// "580.65.06", or "".
std::string driver_version();

// Watches over one GPU.
class GpuMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  // By CUDA's number; none for a negative one, and where NVML is not there.
  explicit GpuMonitor(int cuda_device);
  GpuMonitor(const NvmlApi& api, NvmlApi::Device device) : api_(&api), device_(device) {}

  // Asks at most every half second, and says the same in between: some of it takes a millisecond.
  std::optional<GpuReading> read(Clock::time_point now = Clock::now());

 private:
  const NvmlApi* api_ = nullptr;
  NvmlApi::Device device_ = nullptr;
  GpuReading last_;
  std::optional<Clock::time_point> read_at_;
};

}  // namespace tessera::process
