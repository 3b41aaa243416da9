#include "tessera/process/host_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tessera::process {
namespace {

using Files = std::map<std::string, std::string>;

std::optional<FreeMemory> free_of(const Files& files) {
  return free_host_memory([&](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  });
}

const std::string kMeminfo =
    "MemTotal:       16000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n";

TEST(FreeMemory, IsMemAvailablePlusSwap) {
  const auto free = free_of({{"/proc/meminfo", kMeminfo}});
  ASSERT_TRUE(free);
  EXPECT_EQ(free->bytes, 8000 * 1024);
  EXPECT_EQ(free->bound, "MemAvailable");
  const auto swap = free_of({{"/proc/meminfo", kMeminfo + "SwapFree:  500 kB\n"}});
  EXPECT_EQ(swap->bytes, 8500 * 1024);
  EXPECT_FALSE(free_of({}));
  EXPECT_FALSE(free_of({{"/proc/meminfo", "MemAvailable: soon\n"}}));
}

TEST(FreeMemory, IsBoundedByTheCgroupLimit) {
  Files files = {{"/proc/meminfo", kMeminfo},
                 {"/proc/self/cgroup", "0::/a/b\n"},
                 {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
                 {"/sys/fs/cgroup/a/b/memory.current", "100\n"},
                 {"/sys/fs/cgroup/a/memory.max", "5000\n"},
                 {"/sys/fs/cgroup/a/memory.current", "3000\n"}};
  EXPECT_EQ(free_of(files)->bytes, 2000);
  EXPECT_NE(free_of(files)->bound.find("cgroup"), std::string::npos);
  // Reclaimable file pages count as free.
  files["/sys/fs/cgroup/a/memory.stat"] = "anon 7\ninactive_file 400\n";
  EXPECT_EQ(free_of(files)->bytes, 2400);
  files["/sys/fs/cgroup/a/memory.stat"] = "anon 7\ninactive_file 400\nactive_file 30\n";
  EXPECT_EQ(free_of(files)->bytes, 2430);
  // A limit above the host's memory has no effect.
  files["/sys/fs/cgroup/a/memory.max"] = "500000000000\n";
  EXPECT_EQ(free_of(files)->bytes, 8000 * 1024);
  // Usage over the limit leaves 0, not a negative number.
  files["/sys/fs/cgroup/a/memory.max"] = "100\n";
  files.erase("/sys/fs/cgroup/a/memory.stat");
  EXPECT_EQ(free_of(files)->bytes, 0);
}

TEST(FreeMemory, ReadsTheRootCgroupInContainers) {
  EXPECT_EQ(free_of({{"/proc/meminfo", kMeminfo},
                     {"/proc/self/cgroup", "0::/\n"},
                     {"/sys/fs/cgroup/memory.max", "4096\n"},
                     {"/sys/fs/cgroup/memory.current", "96\n"}})
                ->bytes,
            4000);
  // cgroup v1: in a container the path is that of the host, and the files are at the root.
  EXPECT_EQ(free_of({{"/proc/meminfo", kMeminfo},
                     {"/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/17\n"},
                     {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"},
                     {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1096\n"},
                     {"/sys/fs/cgroup/memory/memory.stat",
                      "active_file 7\ntotal_inactive_file 90\ntotal_active_file 6\n"}})
                ->bytes,
            3096);
  EXPECT_EQ(free_of({{"/proc/meminfo", kMeminfo},
                     {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                     {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "1096\n"}})
                ->bytes,
            8000 * 1024);
}

TEST(FreeMemory, IsPositiveOnThisHost) {
  const auto free = free_host_memory();
  ASSERT_TRUE(free);
  EXPECT_GT(free->bytes, 0);
}

}  // namespace
}  // namespace tessera::process
