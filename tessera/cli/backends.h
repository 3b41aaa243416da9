#pragma once

#include <string>
#include <vector>

#include "tessera/cli/torch_info.h"

namespace tessera::cli {

struct BackendStatus {
  std::string name;
  bool works = false;
  std::string why;  // what it rests on, or what is missing and how to get it
};

// What the backends need, as far as it can be found out without starting ranks.
struct BackendFacts {
  std::string shm_problem;  // "" when shared memory works
  bool mpi_built = false;
  std::string mpi_library;  // "" when it cannot be loaded
  TorchInfo torch;
  std::string nccl_library;  // "" when it cannot be loaded
  int driver_gpus = 0;
};

// Tries what the shm backend stands on: a memfd, passed over a Unix socket, mapped and seen from
// both mappings. Returns what failed, or "".
std::string shared_memory_problem();

std::vector<BackendStatus> backend_statuses(const BackendFacts& facts);

}  // namespace tessera::cli
