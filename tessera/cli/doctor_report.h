#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/backends.h"
#include "tessera/cli/machine.h"
#include "tessera/cli/torch_info.h"
#include "tessera/process/topology.h"

namespace tessera::cli {

// Results of `tessera doctor`.
struct DoctorReport {
  std::string tessera_version;
  std::string compiler;
  TorchInfo torch;
  std::optional<std::string> mpi;   // nullopt: not in this build
  std::optional<std::string> nccl;  // nullopt: not found
  std::optional<std::string> cublaslt;
  std::optional<std::string> driver;  // NVIDIA driver version
  bool cuda_kernels = false;          // Tessera's CUDA kernels are built in
  CpuInfo cpu;
  process::Topology topology;
  std::optional<double> cpu_quota;
  MemoryInfo memory;
  std::vector<Limit> limits;
  std::optional<std::vector<Gpu>> gpus;
  std::vector<BackendStatus> backends;

  // Returns true if shm works: it is the backend that one machine needs.
  bool healthy() const;
};

// Returns the compiler that built this program: "g++ 12.2.0".
std::string compiler_version();

std::string to_text(const DoctorReport& report);
std::string to_json(const DoctorReport& report);

}  // namespace tessera::cli
