#include "tessera/process/cpu_topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/core/index.h"
#include "tests/temporary_folder.h"

namespace tessera::process {
namespace {

// A made-up /sys/devices/system/cpu.
class FakeSysfs {
 public:
  void add(int cpu, int package, int node, int core) const {
    const std::filesystem::path folder = root_ / ("cpu" + std::to_string(cpu));
    std::filesystem::create_directories(folder / "topology");
    std::filesystem::create_directories(folder / ("node" + std::to_string(node)));
    std::ofstream(folder / "topology/physical_package_id") << package << "\n";
    std::ofstream(folder / "topology/core_id") << core << "\n";
  }
  const std::string& root() const { return root_.path; }

 private:
  TemporaryFolder root_;
};

// Two sockets of two cores with two threads each, numbered as Linux does on x86: first one thread
// of each core, alternating between the sockets, then the others.
TEST(Topology, KeepsTheThreadsOfACoreTogether) {
  const FakeSysfs sysfs;
  for (int cpu = 0; cpu < 8; ++cpu) sysfs.add(cpu, cpu % 2, cpu % 2, cpu % 4 / 2);
  const Topology machine = topology_from_sysfs({0, 1, 2, 3, 4, 5, 6, 7}, sysfs.root());
  ASSERT_EQ(machine.cores.size(), 4u);
  EXPECT_EQ(machine.packages(), 2);
  EXPECT_EQ(machine.numa_nodes(), 2);
  EXPECT_EQ(machine.cpus(), 8);
  const auto shares = divide_cores(machine, 2);
  EXPECT_EQ(shares, (std::vector<std::vector<int>>{{0, 4, 2, 6}, {1, 5, 3, 7}}));
  EXPECT_EQ(threads_per_rank(machine, std::nullopt, 2), 2) << "one thread per core";
}

TEST(Topology, UsesOnlyAllowedCpus) {
  const FakeSysfs sysfs;
  for (int cpu = 0; cpu < 8; ++cpu) sysfs.add(cpu, 0, 0, cpu % 4);
  const Topology machine = topology_from_sysfs({2, 3, 6}, sysfs.root());
  ASSERT_EQ(machine.cores.size(), 2u);
  EXPECT_EQ(machine.cores[0].cpus, (std::vector<int>{2, 6}));
  EXPECT_EQ(machine.cores[1].cpus, (std::vector<int>{3}));
}

TEST(Topology, CountsEveryCpuAsACoreWithoutSysfs) {
  const Topology machine = topology_from_sysfs({0, 1, 2}, "/nonexistent");
  EXPECT_EQ(machine.cores.size(), 3u);
}

TEST(Topology, SharesAreContiguousAndCoverEverything) {
  Topology machine;
  for (int cpu = 0; cpu < 7; ++cpu) machine.cores.push_back({0, 0, {cpu}});
  for (int ranks = 1; ranks <= 7; ++ranks) {
    int next = 0;
    for (const std::vector<int>& share : divide_cores(machine, ranks)) {
      EXPECT_GE(share.size(), as_size(7 / ranks));
      for (int cpu : share) EXPECT_EQ(cpu, next++);
    }
    EXPECT_EQ(next, 7);
  }
  for (const std::vector<int>& share : divide_cores(machine, 8)) EXPECT_TRUE(share.empty());
}

TEST(Topology, LimitsThreadsToTheQuota) {
  Topology machine;
  for (int cpu = 0; cpu < 64; ++cpu) machine.cores.push_back({0, 0, {cpu}});
  EXPECT_EQ(threads_per_rank(machine, std::nullopt, 4), 16);
  EXPECT_EQ(threads_per_rank(machine, 3.5, 2), 2);
  EXPECT_EQ(threads_per_rank(machine, 2, 4), 1);
  EXPECT_EQ(threads_per_rank(machine, std::nullopt, 100), 1);
}

TEST(Topology, HwlocAndSysfsAgreeOnThisMachine) {
  const std::vector<int> allowed = allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  const Topology sysfs = topology_from_sysfs(allowed);
  EXPECT_EQ(sysfs.cpus(), static_cast<int>(allowed.size()));
  const auto hwloc = topology_from_hwloc(allowed);
  if (!hwloc) GTEST_SKIP() << "built without hwloc";
  EXPECT_EQ(hwloc->cores.size(), sysfs.cores.size());
  EXPECT_EQ(hwloc->cpus(), sysfs.cpus());
}

}  // namespace
}  // namespace tessera::process
