// Which rank a process is, as each launcher tells it.

#include <gtest/gtest.h>

#include <torch/types.h>

#include <cstdlib>

#include "tessera/comm/bootstrap.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Exactly these variables of the launchers, until the end of the test.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name : kAll) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kAll) unsetenv(name);
  }

 private:
  static constexpr const char* kAll[] = {"RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "TORCHELASTIC_RUN_ID",
                                         "TORCHELASTIC_RESTART_COUNT",
                                         "OMPI_COMM_WORLD_RANK",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "OMPI_COMM_WORLD_LOCAL_SIZE",
                                         "SLURM_PROCID",
                                         "SLURM_NTASKS",
                                         "SLURM_LOCALID",
                                         "SLURM_NTASKS_PER_NODE",
                                         "SLURM_STEP_ID",
                                         "SLURM_STEP_NODELIST",
                                         "SLURM_JOB_ID"};
};

std::string refusal() {
  try {
    detect_launch();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, AloneIsAGroupOfOne) {
  Environment none(Variables{});
  EXPECT_EQ(detect_launch().launcher, "alone");
  const Group world = init();
  EXPECT_EQ(world.size(), 1);
  const at::Tensor x = torch::ones({3});
  world.all_reduce(x).wait();
  EXPECT_EQ(x.sum().item<float>(), 3.0f);
}

TEST(Launch, Torchrun) {
  Environment torchrun({{"RANK", "5"},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "head"},
                        {"MASTER_PORT", "29500"},
                        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                        {"TORCHELASTIC_RUN_ID", "job"},
                        {"TORCHELASTIC_RESTART_COUNT", "2"}});
  const Launch launch = detect_launch();
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.master_address, "head");
  EXPECT_EQ(launch.master_port, 29500);
  EXPECT_TRUE(launch.launcher_hosts_store);
  EXPECT_EQ(launch.run, "job/2");  // a restarted job does not read the notes of the one before
}

TEST(Launch, Mpirun) {
  Environment mpirun({{"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const Launch launch = detect_launch();
  EXPECT_EQ(launch.launcher, "mpirun");
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_EQ(launch.master_address, "");
}

TEST(Launch, Srun) {
  const Variables base = {{"SLURM_PROCID", "3"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_JOB_ID", "123456"},
                          {"SLURM_STEP_ID", "2"}};
  const Variables lists = {{"node[07-09,12],login1", "node07"},
                           {"a1,a2", "a1"},
                           {"single", "single"},
                           {"x[3,5]", "x3"},
                           {"m,n[1-2]", "m"}};
  for (const auto& [list, first] : lists) {
    auto variables = base;
    variables.emplace_back("SLURM_STEP_NODELIST", list);
    Environment srun(variables);
    const Launch launch = detect_launch();
    EXPECT_EQ(launch.launcher, "srun");
    EXPECT_EQ(launch.rank, 3);
    EXPECT_EQ(launch.master_address, first) << list;
    EXPECT_GE(launch.master_port, 20000);
    EXPECT_LT(launch.master_port, 40000);
  }
}

TEST(Launch, NonsenseIsRefusedByName) {
  {
    Environment half(Variables{{"RANK", "0"}});
    EXPECT_NE(refusal().find("WORLD_SIZE"), std::string::npos) << refusal();
  }
  {
    Environment text({{"RANK", "zero"}, {"WORLD_SIZE", "2"}});
    EXPECT_NE(refusal().find("\"zero\""), std::string::npos) << refusal();
  }
  {
    Environment outside({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}});
    EXPECT_NE(refusal().find("rank 2 of 2"), std::string::npos) << refusal();
  }
  {
    Environment none(Variables{});
    InitOptions options;
    options.backend = "mip";
    try {
      init(options);
      ADD_FAILURE() << "no exception";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("did you mean mpi"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera::comm
