// Which rank a process is, as each launcher tells it.

#include <gtest/gtest.h>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

#include "tessera/comm/bootstrap.h"
#include "tessera/comm/c10d_store.h"
#include "tessera/comm/gpus.h"
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
  EXPECT_TRUE(launch.c10d_store);
  EXPECT_FALSE(launch.one_host);
  EXPECT_EQ(launch.run, "job/2");  // a restarted job does not read the notes of the one before
}

TEST(Launch, TesseraRunNamesItsOwnStore) {
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
  Environment torchrun_below(variables);  // started by a rank of ours: its agent's store counts
  EXPECT_EQ(detect_launch().master_address, "head");
}

TEST(Launch, PortsAreInTheirRange) {
  for (const char* port : {"0", "65536", "99999"}) {
    Environment torchrun({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}});
    EXPECT_NE(refusal().find("MASTER_PORT is "), std::string::npos) << port;
    Environment srun({{"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_STEP_ID", "0"},
                      {"MASTER_PORT", port}});
    EXPECT_NE(refusal().find("a port is 1 to 65535"), std::string::npos) << port;
  }
}

TEST(Launch, RanksThatAreSurelyOnOneHostMeetAtItsLoopback) {
  const Variables base = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  const std::vector<std::pair<Variables, bool>> cases = {
      {{}, true},
      {{{"MASTER_ADDR", "localhost"}}, true},
      {{{"MASTER_ADDR", "head"}}, false},  // nobody said that the other is here
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
  EXPECT_FALSE(launch.one_host);
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

TEST(Launch, TheRankAmongThoseOfItsHost) {
  Environment second({{"RANK", "5"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "10.0.0.1"},
                      {"MASTER_PORT", "1"}});
  EXPECT_EQ(local_rank_of(5, 8), 1);
  EXPECT_EQ(local_rank_of(2, 4), 2);  // a world of its own, of threads
}

TEST(Launch, TasksOfASlurmNode) {
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

TEST(Launch, RanksOfAPyTorchJobHaveAPodEach) {
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

// torchrun's agent hosts a store that anybody can write to.
TEST(Launch, ValuesInAStoreOfC10dAreSealed) {
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
  // A rank looks again and again for others that have not joined.
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(store->get("absent", std::chrono::milliseconds(10)), Error);
    EXPECT_EQ(store->get("peers/0", std::chrono::minutes(1)), "true");
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
