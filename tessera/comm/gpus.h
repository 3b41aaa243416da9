#pragma once

#include <string>
#include <vector>

namespace tessera::comm {

// Returns the number of GPUs that this process can use.
int gpu_count();

// Returns the GPU of a process: its local rank modulo the number of GPUs. Throws UsageError if
// there is no GPU.
int gpu_of(int local_rank, int gpus);

// Returns the local rank set by this process's launcher. If `rank` and `size` are not those of the
// launcher (ranks that are threads of a test), returns `rank`.
int local_rank_of(int rank, int size);

// GPU properties of one rank.
struct GpuFacts {
  int gpus = 0;
  int local_size = 1;        // ranks on its host
  std::string nccl_problem;  // reason why NCCL cannot be used; "" if it can
};
// Backend chosen by "auto".
struct BackendChoice {
  std::string kind;
  std::string note;  // message that data is copied through host memory, and why; "" for nccl
};
// Chooses a backend for tensors on GPUs: nccl if every rank has its own GPU and NCCL, otherwise one
// that copies through host memory. Depends only on its arguments, so all ranks choose the same one.
BackendChoice choose_for_gpus(const std::vector<GpuFacts>& ranks, bool one_host);

// Convert to one line of text and back. gpu_facts() throws DataError if the text is invalid.
std::string to_text(const GpuFacts& facts);
GpuFacts gpu_facts(const std::string& text);

}  // namespace tessera::comm
