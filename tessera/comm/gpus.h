#pragma once

#include <string>
#include <vector>

namespace tessera::comm {

// GPUs that this process can use.
int gpu_count();

// The GPU of a process: by its rank among those of its host, round and round where there are more
// ranks than GPUs. Throws UsageError where there is none.
int gpu_of(int local_rank, int gpus);

// That rank of this process, as its launcher says; of ranks that nobody launched as processes (the
// threads of a test), their own number.
int local_rank_of(int rank, int size);

// What a rank knows of its GPUs, and what "auto" makes of what all of them know.
struct GpuFacts {
  int gpus = 0;
  int local_size = 1;        // ranks on its host
  std::string nccl_problem;  // why NCCL cannot be used; "" if it can
};
struct BackendChoice {
  std::string kind;
  std::string note;  // for people: that everything goes through host memory, and why; or ""
};
// For tensors on GPUs: nccl where every rank has a GPU of its own and NCCL, else through host
// memory. The same facts give the same choice, so that ranks that have them all agree.
BackendChoice choose_for_gpus(const std::vector<GpuFacts>& ranks, bool one_host);

// A line of text, and back. Throws DataError for what is none.
std::string to_text(const GpuFacts& facts);
GpuFacts gpu_facts(const std::string& text);

}  // namespace tessera::comm
