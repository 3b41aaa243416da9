#include "tessera/comm/gpus.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <sstream>

#include "tessera/comm/launch.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

int gpu_count() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  return c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
}

int gpu_of(int local_rank, int gpus) {
  if (gpus < 1) throw UsageError("LibTorch found no usable GPU on this host; use --device cpu");
  return local_rank % gpus;
}

int local_rank_of(int rank, int size) {
  const Launch launch = detect_launch();
  return launch.size == size && launch.rank == rank ? launch.local_rank : rank;
}

BackendChoice choose_for_gpus(const std::vector<GpuFacts>& ranks, bool one_host) {
  std::string problem;
  for (std::size_t r = 0; r < ranks.size() && problem.empty(); ++r) {
    const GpuFacts& rank = ranks[r];
    if (!rank.nccl_problem.empty()) {
      problem = str("rank ", r, " cannot use NCCL: ", rank.nccl_problem);
    } else if (rank.gpus < rank.local_size) {
      problem = str(plural(rank.local_size, "rank"), " of a host share its ",
                    plural(rank.gpus, "GPU"), ", and nccl needs one GPU per rank");
    }
  }
  if (problem.empty()) return {"nccl", ""};
  const std::string kind = one_host ? "shm" : "two-level";
  return {kind, str("backend auto: using ", kind,
                    ", which copies all data through host memory: ", problem)};
}

std::string to_text(const GpuFacts& facts) {
  return str(facts.gpus, " ", facts.local_size, " ", facts.nccl_problem);
}

GpuFacts gpu_facts(const std::string& text) {
  GpuFacts facts;
  std::istringstream in(text);
  if (!(in >> facts.gpus >> facts.local_size) || facts.gpus < 0 || facts.local_size < 1) {
    throw DataError(str("the GPU description ", quote(text),
                        " of a rank is invalid; must be the number of GPUs and the number of "
                        "ranks on its host. Use the same version of Tessera on all hosts"));
  }
  in.get();
  std::getline(in, facts.nccl_problem, '\0');
  return facts;
}

}  // namespace tessera::comm
