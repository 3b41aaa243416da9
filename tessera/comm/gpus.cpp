#include "tessera/comm/gpus.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <sstream>

#include "tessera/comm/bootstrap.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

int gpu_count() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  return c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
}

int gpu_of(int local_rank, int gpus) {
  if (gpus < 1) throw UsageError("there is no GPU that LibTorch can use here; wanted --device cpu");
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
      problem = str("rank ", r, " has no NCCL: ", rank.nccl_problem);
    } else if (rank.gpus < rank.local_size) {
      problem = str(plural(rank.local_size, "rank"), " of a host share its ",
                    plural(rank.gpus, "GPU"), ", and nccl wants one for each");
    }
  }
  if (problem.empty()) return {"nccl", ""};
  const std::string kind = one_host ? "shm" : "two-level";
  return {kind,
          str("backend auto: ", kind, ", with everything copied through host memory: ", problem)};
}

std::string to_text(const GpuFacts& facts) {
  return str(facts.gpus, " ", facts.local_size, " ", facts.nccl_problem);
}

GpuFacts gpu_facts(const std::string& text) {
  GpuFacts facts;
  std::istringstream in(text);
  if (!(in >> facts.gpus >> facts.local_size) || facts.gpus < 0 || facts.local_size < 1) {
    throw DataError(str("a rank says of its GPUs ", quote(text),
                        "; wanted their number and that of the ranks on its host"));
  }
  in.get();
  std::getline(in, facts.nccl_problem, '\0');
  return facts;
}

}  // namespace tessera::comm
