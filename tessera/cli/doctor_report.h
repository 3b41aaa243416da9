#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/machine.h"
#include "tessera/process/cpu_topology.h"

namespace tessera::cli {

// Description of the loaded LibTorch.
struct TorchInfo {
  std::string version;
  std::string library;  // path of the library
  bool cuda_build = false;
  std::string cuda_version;  // of the build; "" without CUDA
  int gpus = 0;              // GPUs that it can use
};

TorchInfo torch_info();

struct BackendStatus {
  std::string name;
  bool works = false;
  std::string why;  // version or mechanism; if it does not work, what is missing
};

// Inputs of backend_statuses(). A problem is empty if the backend works.
struct BackendFacts {
  std::string shm_problem;
  std::string nccl_problem;
  std::string nccl_version;
  int usable_gpus = 0;  // GPUs that LibTorch can use
  int driver_gpus = 0;  // GPUs that the driver lists
};

// Tests what the shm backend depends on: passes a memfd over a Unix socket and maps it twice.
// Returns the failure, or "".
std::string shared_memory_problem();

std::vector<BackendStatus> backend_statuses(const BackendFacts& facts);

// Results of `tessera doctor`.
struct DoctorReport {
  std::string tessera_version;
  std::string compiler;
  TorchInfo torch;
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
