#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/cli/backends.h"
#include "tessera/cli/machine.h"
#include "tessera/cli/torch_info.h"
#include "tessera/process/topology.h"

namespace tessera::cli {

// All that `tessera doctor` finds out, before it is written in either form.
struct DoctorReport {
  std::string tessera_version;
  std::string compiler;
  TorchInfo torch;
  std::optional<std::string> mpi;   // no value: not in this build
  std::optional<std::string> nccl;  // no value: none was found
  std::optional<std::string> cublaslt;
  std::optional<std::string> driver;  // of NVIDIA's GPUs
  bool cuda_kernels = false;          // are ours in this program?
  CpuInfo cpu;
  process::Topology topology;
  std::optional<double> cpu_quota;
  MemoryInfo memory;
  std::vector<Limit> limits;
  std::optional<std::vector<Gpu>> gpus;
  std::vector<BackendStatus> backends;

  // shm is what one machine needs, so it decides.
  bool healthy() const;
};

// The compiler that this program was built with: "g++ 12.2.0".
std::string compiler_version();

std::string to_text(const DoctorReport& report);
std::string to_json(const DoctorReport& report);

}  // namespace tessera::cli
