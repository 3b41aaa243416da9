#include <gtest/gtest.h>

#include <sstream>

#include "tessera/core/errors.h"
#include "tests/comm/oracle.h"
#include "tests/comm/processes.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using testing::Processes;
using testing::require;

Collective all_reduce(float* x, std::size_t count, std::string label = "") {
  return {Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x, x, count, -1, label};
}

// Sums repeatedly until a peer fails.
void sum_for_ever(Backend& group, std::size_t count) {
  auto memory = group.symmetric(count * 4);
  auto* x = static_cast<float*>(memory->part(group.rank()));
  for (int i = 0;; ++i) {
    group.submit(all_reduce(x, count, "gradient")).wait();
    if (i == 1) Processes::note(group.rank(), "sums");
  }
}

void await_sums(const Processes& ranks, int count) {
  for (int r = 0; r < count; ++r) ASSERT_TRUE(ranks.await_note(r, "sums")) << ranks.error(r);
}

// Every survivor must end, with a PeerError that names the dead rank.
void expect_survivors_name(Processes& ranks, int count, int dead) {
  for (int r = 0; r < count; ++r) {
    if (r == dead) continue;
    EXPECT_NE(ranks.await_end(r, 100s), -1) << "rank " << r << " hangs";
    const std::string text = ranks.error(r);
    EXPECT_NE(text.find("rank " + std::to_string(dead) + " "), std::string::npos) << text;
  }
}

TEST(Process, RunsCollectivesInMemoryPassedBetweenProcesses) {
  Processes ranks(3, [](std::shared_ptr<Backend> group) {
    for (const std::size_t count : {1u, 1000u, 300'001u}) {
      std::vector<testing::Bytes> inputs;
      for (int r = 0; r < 3; ++r) inputs.push_back(testing::make_input(DType::bf16, count, r));
      Collective call{Op::all_reduce, DType::bf16, ReduceOp::avg,
                      Traffic::model, nullptr,     nullptr,
                      count,          -1,          "x"};
      const auto want = testing::expected(call, inputs, group->rank(), {});
      auto own = inputs[static_cast<std::size_t>(group->rank())];
      call.in = call.out = own.data();
      group->submit(call).wait();
      require(own == want, "ordinary");
      auto memory = group->symmetric(count * 2);
      auto* shared = memory->part(group->rank());
      std::memcpy(shared, inputs[static_cast<std::size_t>(group->rank())].data(), count * 2);
      call.in = call.out = shared;
      group->submit(call).wait();
      require(std::memcmp(shared, want.data(), count * 2) == 0, "symmetric");
      group->submit({}).wait();
    }
  });
  for (int r = 0; r < 3; ++r) EXPECT_EQ(ranks.await_end(r, 60s), 0) << ranks.error(r);
}

class Death : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(SmallAndLarge, Death, ::testing::Values(10, 3'000'000));

// Long before the timeout of five minutes for ranks that are alive.
TEST_P(Death, AllRanksDetectASigkill) {
  Processes ranks(4, [&](std::shared_ptr<Backend> group) { sum_for_ever(*group, GetParam()); });
  await_sums(ranks, 4);
  ranks.signal(2, SIGKILL);
  expect_survivors_name(ranks, 4, 2);
}

TEST(Process, ExitWithoutLeavingIsADeath) {
  Processes ranks(3, [](std::shared_ptr<Backend> group) {
    std::vector<float> x(10, 1.0f);
    group->submit(all_reduce(x.data(), 10)).wait();
    if (group->rank() == 1) _exit(7);
    sum_for_ever(*group, 1000);
  });
  EXPECT_EQ(WEXITSTATUS(ranks.await_end(1, 10s)), 7);
  expect_survivors_name(ranks, 3, 1);
}

TEST(Process, ExceptionCountsAsLeaving) {
  Processes ranks(3, [](std::shared_ptr<Backend> group) {
    if (group->rank() == 0) throw DataError("bad file");
    sum_for_ever(*group, 100'000);
  });
  EXPECT_EQ(WEXITSTATUS(ranks.await_end(0, 10s)), 1);
  EXPECT_EQ(ranks.error(0), "bad file");
  expect_survivors_name(ranks, 3, 0);
}

// The child keeps the dead rank's sockets open, so the process itself must be monitored too.
TEST(Process, DetectsADeathAlthoughAChildHoldsTheSockets) {
  Processes ranks(2, [](std::shared_ptr<Backend> group) {
    if (group->rank() == 1) {
      if (fork() == 0) {
        for (;;) pause();
      }
    }
    sum_for_ever(*group, 1000);
  });
  await_sums(ranks, 2);
  ranks.signal(1, SIGKILL);
  expect_survivors_name(ranks, 2, 1);
}

TEST(Process, NamesAStoppedRankAfterTheTimeout) {
  GroupOptions options;
  options.timeout = 6s;  // longer than a rank waits for a core on a busy machine
  Processes ranks(
      3, [](std::shared_ptr<Backend> group) { sum_for_ever(*group, 1000); }, options);
  await_sums(ranks, 3);
  ranks.signal(0, SIGSTOP);
  expect_survivors_name(ranks, 3, 0);
  const std::string text = ranks.error(1) + ranks.error(2);
  EXPECT_NE(text.find("rank 0 is alive but did not come within 6 s"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce(sum, 1000 × f32, \"gradient\")"), std::string::npos) << text;
  EXPECT_NE(text.find("#"), std::string::npos) << text;  // the sequence number
}

// Counts the processes of a group, without zombies, and their descriptors of shared memory.
struct Left {
  int processes = 0;
  int segments = 0;
};
Left left_of(pid_t group) {
  Left left;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (entry.path().filename().string().find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream stat(entry.path() / "stat");
    std::string text;
    std::getline(stat, text);
    const std::size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) continue;
    std::istringstream rest(text.substr(name_end + 1));
    char state = 0;
    pid_t parent = 0, own_group = 0;
    rest >> state >> parent >> own_group;
    if (own_group != group || state == 'Z') continue;
    ++left.processes;
    std::error_code gone;  // at any moment
    for (const auto& fd : std::filesystem::directory_iterator(entry.path() / "fd", gone)) {
      const auto target = std::filesystem::read_symlink(fd.path(), gone).string();
      left.segments += target.starts_with("/memfd:tessera");
    }
    std::ifstream maps(entry.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      left.segments += line.find("/memfd:tessera") != std::string::npos;
    }
  }
  return left;
}

TEST(Process, LeavesNothingBehindWhenAllRanksAreKilled) {
  Processes ranks(3, [](std::shared_ptr<Backend> group) { sum_for_ever(*group, 300'000); });
  await_sums(ranks, 3);
  const Left before = left_of(ranks.group());
  EXPECT_EQ(before.processes, 3);
  EXPECT_EQ(before.segments, 6);  // each has mapped the group's memory and its own
  for (int r = 0; r < 3; ++r) ranks.signal(r, SIGKILL);
  for (int r = 0; r < 3; ++r) EXPECT_NE(ranks.await_end(r, 100s), -1);
  const Left after = left_of(ranks.group());
  EXPECT_EQ(after.processes, 0);
  EXPECT_EQ(after.segments, 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child is left
}

TEST(Process, NamesARankThatNeverStarts) {
  auto folder =
      std::filesystem::temp_directory_path() / ("tessera-absent-" + std::to_string(getpid()));
  auto store = make_file_store(folder);
  try {
    connect_peers(*store, 0, 2, {300ms});
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("peers/1"), std::string::npos) << error.what();
  }
  std::filesystem::remove_all(folder);
}

// More than 2 GiB, where 32-bit counts would overflow.
TEST(Process, TransfersMoreThanTwoGibibytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "too slow and too large under a sanitizer";
#endif
  if (sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) < 8'000'000'000) {
    GTEST_SKIP() << "needs 8 GB of free memory";
  }
  constexpr std::size_t kCount = (std::size_t{1} << 31) + 12'345;
  Processes ranks(2, [](std::shared_ptr<Backend> group) {
    auto memory = group->symmetric(kCount);
    auto* x = static_cast<std::uint8_t*>(memory->part(group->rank()));
    const auto value = [](std::size_t i, int rank) {
      return static_cast<std::uint8_t>((i >> 7) * 31 + i + static_cast<std::size_t>(rank) * 5);
    };
    for (std::size_t i = 0; i < kCount; ++i) x[i] = value(i, group->rank());
    group->submit({Op::all_reduce, DType::u8, ReduceOp::sum, Traffic::model, x, x, kCount, -1, ""})
        .wait();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      wrong += x[i] != static_cast<std::uint8_t>(value(i, 0) + value(i, 1));
    }
    require(wrong == 0, std::to_string(wrong) + " elements are wrong");
    // Again through the stages: from symmetric into ordinary memory.
    std::vector<std::uint8_t> all(kCount);
    const Shard own = shard_of(kCount, 2, group->rank());
    std::vector<std::uint8_t> mine(x + own.begin, x + own.begin + own.size);
    group
        ->submit({Op::all_gather, DType::u8, ReduceOp::sum, Traffic::model, mine.data(), all.data(),
                  kCount, -1, ""})
        .wait();
    require(std::memcmp(all.data(), x, kCount) == 0, "all_gather");
  });
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.await_end(r, 500s), 0) << ranks.error(r);
}

}  // namespace
}  // namespace tessera::comm
