// Rank and size of a process under each launcher.

#include <gtest/gtest.h>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <functional>

#include "tessera/comm/bootstrap.h"
#include "tessera/comm/c10d_store.h"
#include "tessera/comm/gpus.h"
#include "tessera/comm/launch.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Sets exactly these variables of the launchers until the end of the test.
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
                                         "OMPI_MCA_orte_hnp_uri",
                                         "PMIX_NAMESPACE",
                                         "PMI_RANK",
                                         "PMI_SIZE",
                                         "MPI_LOCALRANKID",
                                         "MPI_LOCALNRANKS",
                                         "SLURM_PROCID",
                                         "SLURM_NTASKS",
                                         "SLURM_LOCALID",
                                         "SLURM_NTASKS_PER_NODE",
                                         "SLURM_STEP_ID",
                                         "SLURM_STEP_NODELIST",
                                         "SLURM_JOB_ID",
                                         "SLURM_NNODES",
                                         "SLURM_STEP_NUM_NODES",
                                         "SLURM_NODELIST",
                                         "SLURM_NODEID",
                                         "SLURM_STEP_TASKS_PER_NODE",
                                         "TESSERA_CHECK_EVERY_CALL",
                                         "TESSERA_STORE",
                                         "TESSERA_SECRET_FD",
                                         "TESSERA_SECRET_FILE",
                                         "TESSERA_INTERFACE"};
};

std::string refusal(const std::function<void()>& call = [] { detect_launch(); }) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, WithoutALauncherIsAGroupOfOne) {
  Environment none(Variables{});
  EXPECT_EQ(detect_launch().launcher, "alone");
  const Group world = init();
  EXPECT_EQ(world.size(), 1);
  const at::Tensor x = torch::ones({3});
  world.all_reduce(x).wait();
  EXPECT_EQ(x.sum().item<float>(), 3.0f);
}

TEST(Launch, ReadsVariablesOfTorchrun) {
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
  EXPECT_TRUE(launch.c10d_store);
  EXPECT_FALSE(launch.one_host);
  EXPECT_EQ(launch.run, "job/2");  // a restarted job must not read keys of the previous attempt
}

TEST(Launch, ReadsTheStoreOfTesseraRun) {
  const Variables base = {{"RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "head"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                          {"TESSERA_STORE", "192.0.2.1:29501"},
                          {"TESSERA_SECRET_FD", "5"},
                          {"TESSERA_INTERFACE", "eth1"}};
  {
    Environment ours(base);
    const Launch launch = detect_launch();
    EXPECT_TRUE(launch.launcher_hosts_store);
    EXPECT_FALSE(launch.c10d_store);
    EXPECT_EQ(launch.master_address, "192.0.2.1");
    EXPECT_EQ(launch.master_port, 29501);
    EXPECT_EQ(launch.secret_fd, 5);
    EXPECT_EQ(launch.interface, "eth1");
    EXPECT_FALSE(launch.one_host);
  }
  for (const char* text : {"host", ":80", "host:", "host:0", "host:65536", "host:8x", "host:-1"}) {
    auto variables = base;
    variables.emplace_back("TESSERA_STORE", text);
    Environment wrong(variables);
    EXPECT_NE(refusal().find("TESSERA_STORE"), std::string::npos) << text;
  }
  auto variables = base;
  variables.emplace_back("TORCHELASTIC_USE_AGENT_STORE", "True");
  Environment torchrun_below(variables);  // torchrun started by one of our ranks uses its own store
  EXPECT_EQ(detect_launch().master_address, "head");
}

TEST(Launch, RejectsPortsOutOfRange) {
  for (const char* port : {"0", "65536", "99999"}) {
    Environment torchrun({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}});
    EXPECT_NE(refusal().find("MASTER_PORT is "), std::string::npos) << port;
    Environment srun({{"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_STEP_ID", "0"},
                      {"MASTER_PORT", port}});
    EXPECT_NE(refusal().find("must be a port from 1 to 65535"), std::string::npos) << port;
  }
}

TEST(Launch, UsesLoopbackIfAllRanksAreOnOneHost) {
  const Variables base = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  const std::vector<std::pair<Variables, bool>> cases = {
      {{}, true},
      {{{"MASTER_ADDR", "localhost"}}, true},
      {{{"MASTER_ADDR", "head"}}, false},  // the other rank may be on another host
      {{{"MASTER_ADDR", "head"}, {"LOCAL_WORLD_SIZE", "2"}}, true},
      {{{"MASTER_ADDR", "head"}, {"LOCAL_WORLD_SIZE", "1"}}, false}};
  for (const auto& [more, one_host] : cases) {
    auto variables = base;
    variables.insert(variables.end(), more.begin(), more.end());
    Environment by_hand(variables);
    const Launch launch = detect_launch();
    EXPECT_EQ(launch.one_host, one_host);
    EXPECT_EQ(launch.master_address, one_host ? "127.0.0.1" : "head");
  }
}

TEST(Launch, UsesTheHostOfOpenMpisMpirunAsTheAddress) {
  const Variables base = {
      {"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "504627201"},
      {"OMPI_MCA_orte_hnp_uri", "504627200.0;tcp://192.0.2.1,10.0.0.1:517;tcp6://[fd00::2]:516"}};
  const auto with = [&](const Variables& more) {
    auto variables = base;
    variables.insert(variables.end(), more.begin(), more.end());
    Environment mpirun(variables);
    return detect_launch();
  };
  const Launch launch = with({});
  EXPECT_EQ(launch.launcher, "mpirun");
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.local_size, 2);
  EXPECT_TRUE(launch.knows_local_rank);
  EXPECT_FALSE(launch.one_host);
  EXPECT_EQ(launch.master_address, "192.0.2.1");
  EXPECT_GE(launch.master_port, 20000);
  EXPECT_LT(launch.master_port, 32000);
  EXPECT_NE(with({{"PMIX_NAMESPACE", "504627202"}}).master_port, launch.master_port);
  EXPECT_NE(with({{"PMIX_NAMESPACE", "504627202"}}).run, launch.run);
  EXPECT_EQ(with({{"MASTER_ADDR", "head"}}).master_address, "head");
  EXPECT_EQ(with({{"MASTER_PORT", "29500"}}).master_port, 29500);
  const Launch here = with({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"MASTER_ADDR", "head"}});
  EXPECT_TRUE(here.one_host);
  EXPECT_EQ(here.master_address, "127.0.0.1");
  EXPECT_EQ(here.master_port, 0) << "rank 0 selects a free port";
  Environment unknown({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_NE(refusal().find("mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500"), std::string::npos);
}

TEST(Launch, ReadsVariablesOfHydra) {
  const Variables base = {{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},     {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"},
                          {"SLURM_STEP_ID", "0"}};
  {
    Environment hydra(base);  // in a Slurm job
    EXPECT_NE(refusal().find("mpiexec -genv MASTER_ADDR"), std::string::npos) << refusal();
  }
  auto addressed = base;
  addressed.emplace_back("MASTER_ADDR", "head");
  addressed.emplace_back("MASTER_PORT", "29500");
  {
    Environment hydra(addressed);
    const Launch launch = detect_launch();
    EXPECT_EQ(launch.launcher, "mpirun");
    EXPECT_EQ(launch.rank, 3);
    EXPECT_EQ(launch.size, 4);
    EXPECT_EQ(launch.local_rank, 1);
    EXPECT_EQ(launch.master_address, "head");
    EXPECT_EQ(launch.master_port, 29500);
  }
  auto slurm = base;
  slurm.erase(slurm.begin() + 2, slurm.begin() + 4);  // srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE
  Environment srun(slurm);
  EXPECT_EQ(detect_launch().launcher, "srun");
}

TEST(Launch, RanksOfMpirunOnSeveralHostsNeedASecret) {
  Environment mpirun({{"OMPI_COMM_WORLD_RANK", "0"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", "29500"}});
  EXPECT_NE(refusal([] { init(); }).find("-x TESSERA_SECRET_FILE=F"), std::string::npos);
}

TEST(Launch, ReadsVariablesOfSrun) {
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

TEST(Launch, ReturnsTheLocalRank) {
  Environment second({{"RANK", "5"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "10.0.0.1"},
                      {"MASTER_PORT", "1"}});
  EXPECT_EQ(local_rank_of(5, 8), 1);
  EXPECT_EQ(local_rank_of(2, 4), 2);  // ranks that are threads
}

TEST(Launch, CountsTasksOfASlurmNode) {
  const Variables base = {{"SLURM_PROCID", "3"},        {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "1"},       {"SLURM_STEP_ID", "0"},
                          {"SLURM_NODELIST", "n[1-4]"}, {"SLURM_STEP_NUM_NODES", "4"}};
  const auto tasks = [&](const std::string& list, const std::string& node) {
    auto variables = base;
    variables.emplace_back("SLURM_STEP_TASKS_PER_NODE", list);
    variables.emplace_back("SLURM_NODEID", node);
    Environment srun(variables);
    EXPECT_EQ(detect_launch().master_address, "n1");
    EXPECT_TRUE(detect_launch().knows_local_rank);
    return detect_launch().local_size;
  };
  EXPECT_EQ(tasks("2(x4)", "3"), 2);
  EXPECT_EQ(tasks("2(x3),1", "2"), 2);
  EXPECT_EQ(tasks("2(x3),1", "3"), 1);
  EXPECT_EQ(tasks("4,3(x2),7", "0"), 4);
  EXPECT_EQ(tasks("4,3(x2),7", "2"), 3);
  EXPECT_EQ(tasks("4,3(x2),7", "3"), 7);
  for (const char* nonsense : {"", "x", "2(x", "(x2)", "2(x1)", ",", "2(x1),"}) {
    EXPECT_EQ(tasks(nonsense, "3"), 1) << nonsense;
  }
}

TEST(Launch, AssumesOnePodPerRankOfAPyTorchJob) {
  const Variables base = {{"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "job-master-0"},
                          {"MASTER_PORT", "23456"}};
  Environment pod(base);
  const Launch launch = detect_launch();
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_FALSE(launch.knows_local_rank);
  EXPECT_FALSE(launch.one_host);
  EXPECT_FALSE(launch.check_every_call);
  auto here = base;
  here.emplace_back("LOCAL_WORLD_SIZE", "4");
  here.emplace_back("TESSERA_CHECK_EVERY_CALL", "1");
  Environment one_host(here);
  EXPECT_EQ(detect_launch().local_rank, 3);
  EXPECT_TRUE(detect_launch().knows_local_rank);
  EXPECT_TRUE(detect_launch().check_every_call);
}

// torchrun's agent hosts a store without access control.
TEST(Launch, AuthenticatesValuesInAC10dStore) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto open = connect_c10d_store("127.0.0.1", agent->getPort(), std::chrono::minutes(1));
  const auto store = make_sealed_store(open, "a secret of the ranks");
  store->set("peers/0", "true");
  EXPECT_EQ(store->get("peers/0", std::chrono::minutes(1)), "true");
  EXPECT_EQ(store->count("n"), 1);
  agent->set("peers/1", std::vector<std::uint8_t>{'f', 'a', 'l', 's', 'e'});
  EXPECT_THROW(store->get("peers/1", std::chrono::minutes(1)), DataError);
  agent->set("large", std::vector<std::uint8_t>(kLongestValue + 1));
  EXPECT_THROW(open->get("large", std::chrono::minutes(1)), DataError);
  // A rank polls for others that have not joined.
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(store->get("absent", std::chrono::milliseconds(10)), Error);
    EXPECT_EQ(store->get("peers/0", std::chrono::minutes(1)), "true");
  }
}

TEST(Launch, RejectsInvalidVariablesByName) {
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
    options.backend = "tpc";
    const std::string text = refusal([&] { init(options); });
    EXPECT_NE(text.find("did you mean tcp"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tessera::comm
