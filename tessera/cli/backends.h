#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

struct BackendStatus {
  std::string name;
  bool works = false;
  std::string why;  // what it rests on, or what is missing and how to get it
};

// What is known about each backend: a problem, or "" and then its version.
struct BackendFacts {
  std::string shm_problem;
  std::string mpi_problem;
  std::string mpi_version;
  std::string nccl_problem;
  std::string nccl_version;
  int usable_gpus = 0;  // by LibTorch
  int driver_gpus = 0;  // shown by the driver
};

// Tries what the shm backend stands on: a memfd, passed over a Unix socket, mapped and seen from
// both mappings. Returns what failed, or "".
std::string shared_memory_problem();

std::vector<BackendStatus> backend_statuses(const BackendFacts& facts);

}  // namespace tessera::cli
