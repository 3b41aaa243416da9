#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::cli {

struct CpuInfo {
  std::string model;
  std::string architecture;
  std::vector<std::string> features;  // instruction sets that affect speed, by common name
};
// The second overload parses text in the format of /proc/cpuinfo.
CpuInfo cpu_info();
CpuInfo cpu_info(const std::string& cpuinfo, const std::string& architecture);

struct MemoryInfo {
  std::int64_t total = 0;
  std::int64_t available = 0;
  std::optional<std::int64_t> limit;          // of the cgroup
  std::optional<std::int64_t> dev_shm_total;  // absent: there is no /dev/shm
  std::optional<std::int64_t> dev_shm_free;
};
MemoryInfo memory_info();

struct Limit {
  std::string name;
  std::optional<std::int64_t> value;  // absent: unlimited
  bool bytes = false;
};
std::vector<Limit> limits();

struct Gpu {
  std::string name;
  std::int64_t memory = 0;
  int units = 0;                // multiprocessors; 0: unknown
  std::string capability = {};  // "9.0"; "" if unknown
};
// Returns the GPUs that the NVIDIA driver lists, whether or not LibTorch can use them; nullopt
// without a driver.
std::optional<std::vector<Gpu>> driver_gpus();
// Returns the version ("13.0.2") of LibTorch's cuBLASLt, otherwise of the one that the loader
// finds; "" if there is none.
std::string cublaslt_version();

}  // namespace tessera::cli
