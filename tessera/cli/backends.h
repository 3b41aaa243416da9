#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

struct BackendStatus {
  std::string name;
  bool works = false;
  std::string why;  // version or mechanism; if it does not work, what is missing
};

// Inputs of backend_statuses(). A problem is empty if the backend works.
struct BackendFacts {
  std::string shm_problem;
  std::string mpi_problem;
  std::string mpi_version;
  std::string nccl_problem;
  std::string nccl_version;
  int usable_gpus = 0;  // GPUs that LibTorch can use
  int driver_gpus = 0;  // GPUs that the driver lists
};

// Tests what the shm backend depends on: passes a memfd over a Unix socket and maps it twice.
// Returns the failure, or "".
std::string shared_memory_problem();

std::vector<BackendStatus> backend_statuses(const BackendFacts& facts);

}  // namespace tessera::cli
