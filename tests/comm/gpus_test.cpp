#include "tessera/comm/gpus.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

TEST(Gpus, AssignsGpusByLocalRankModuloCount) {
  for (int gpus = 1; gpus <= 8; ++gpus) {
    for (int rank = 0; rank < 3 * gpus; ++rank) {
      EXPECT_EQ(gpu_of(rank, gpus), rank % gpus);
      EXPECT_EQ(gpu_of(rank, gpus), gpu_of(rank + gpus, gpus));
    }
  }
  EXPECT_THROW(gpu_of(0, 0), UsageError);
}

TEST(Gpus, ChoosesNcclIffEveryRankHasItsOwnGpuAndNccl) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (int gpus = 0; gpus <= 4; ++gpus) {
      for (const bool nccl : {true, false}) {
        for (const bool one_host : {true, false}) {
          const std::vector<GpuFacts> all(
              static_cast<std::size_t>(ranks),
              {gpus, one_host ? ranks : 1, nccl ? "" : "libnccl.so.2 is not there"});
          const BackendChoice choice = choose_for_gpus(all, one_host);
          const bool good = nccl && gpus >= all.front().local_size;
          EXPECT_EQ(choice.kind, good ? "nccl" : one_host ? "shm" : "two-level");
          EXPECT_EQ(choice.note.empty(), good);
          if (!good) {
            EXPECT_NE(choice.note.find("through host memory"), std::string::npos) << choice.note;
            EXPECT_NE(choice.note.find(nccl ? "share" : "libnccl.so.2"), std::string::npos)
                << choice.note;
          }
        }
      }
    }
  }
}

TEST(Gpus, AvoidsNcclIfOneRankCannotUseIt) {
  std::vector<GpuFacts> all(8, {8, 8, ""});
  EXPECT_EQ(choose_for_gpus(all, true).kind, "nccl");
  all[5].nccl_problem = "CUDA finds no GPU";
  const BackendChoice choice = choose_for_gpus(all, true);
  EXPECT_EQ(choice.kind, "shm");
  EXPECT_NE(choice.note.find("rank 5 cannot use NCCL: CUDA finds no GPU"), std::string::npos);
}

TEST(Gpus, FactsRoundTripThroughText) {
  for (const GpuFacts& facts :
       {GpuFacts{0, 1, ""}, GpuFacts{8, 16, "no NCCL: it is not\nthere "}}) {
    const GpuFacts back = gpu_facts(to_text(facts));
    EXPECT_EQ(back.gpus, facts.gpus);
    EXPECT_EQ(back.local_size, facts.local_size);
    EXPECT_EQ(back.nccl_problem, facts.nccl_problem);
  }
  for (const char* invalid : {"", "x", "1", "-1 1 ", "1 0 ", "99999999999999999999 1"}) {
    EXPECT_THROW(gpu_facts(invalid), DataError) << invalid;
  }
}

}  // namespace
}  // namespace tessera::comm
