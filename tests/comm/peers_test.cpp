// The control plane under stress: peers that stop, limits of the process, memory that is not
// available, and groups that are destroyed by their own threads.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "tessera/comm/connection.h"
#include "tessera/comm/shared_memory.h"
#include "tessera/core/errors.h"
#include "tests/comm/processes.h"
#include "tests/text.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using testing::Processes;
using testing::require;

bool is_stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(stat), {}};
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end + 2, 1) == "T";
}

bool await(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + 100s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

TEST(Connection, DeliversMessagesLargerThanTheSocketBuffer) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  Connection one, other;
  one.socket = Fd(fds[0]);
  other.socket = Fd(fds[1]);
  const auto text = [](int i) {
    return std::to_string(i) + std::string(static_cast<std::size_t>(i) * 37 % 9000, 'x');
  };
  constexpr int kMessages = 500;
  bool all = true;
  for (int i = 0; i < kMessages; ++i) {
    const bool passes = i % 50 == 0;
    all = one.send(
        passes ? ControlMessage::segment : ControlMessage::failure, {text(i)},
        passes ? std::make_shared<const Fd>(open("/dev/null", O_RDONLY | O_CLOEXEC)) : nullptr);
  }
  EXPECT_FALSE(all) << "the socket buffer holds all messages, so nothing is tested";
  EXPECT_TRUE(one.has_unsent());
  int heard = 0;
  const auto hear = [&](ControlMessage type, std::string_view got, Fd descriptor) {
    EXPECT_EQ(got, text(heard));
    EXPECT_EQ(type == ControlMessage::segment, heard % 50 == 0);
    EXPECT_EQ(descriptor.open(), heard % 50 == 0);
    ++heard;
  };
  EXPECT_TRUE(await([&] {
    const bool sent = one.flush();
    EXPECT_NE(other.receive(hear), Connection::End::closed);
    return sent && heard == kMessages;
  }));
  EXPECT_EQ(heard, kMessages);
  one.socket.reset();
  EXPECT_EQ(other.receive(hear), Connection::End::closed);
}

// A rank announces its departure in its last message, so everything must be received before the
// connection counts as closed.
TEST(Connection, ReceivesManyMessagesInSeveralCalls) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  Connection one, other;
  one.socket = Fd(fds[0]);
  other.socket = Fd(fds[1]);
  const int bytes = 200'000;
  setsockopt(one.socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  const std::string text(48'000, 'x');
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(one.send(ControlMessage::note, {text}));
  ASSERT_TRUE(one.send(ControlMessage::gone, {}));
  one.socket.reset();
  std::vector<ControlMessage> heard;
  const auto hear = [&](ControlMessage type, std::string_view, Fd) { heard.push_back(type); };
  EXPECT_EQ(other.receive(hear), Connection::End::more);
  EXPECT_LT(heard.size(), 5u);
  EXPECT_EQ(other.receive(hear), Connection::End::closed);
  ASSERT_EQ(heard.size(), 5u);
  EXPECT_EQ(heard.back(), ControlMessage::gone);
}

// Rank 0 sends more to a stopped rank than the socket buffer holds. Rank 0 is not blocked, and the
// other rank receives everything when it continues.
TEST(Peers, AStoppedRankReceivesEverythingWhenItContinues) {
  constexpr int kSegments = 200;
  const auto name = [](int i) { return std::to_string(i) + std::string(4000, 'n'); };
  Processes ranks(2, [&](std::shared_ptr<Peers> peers) {
    const std::vector<int> members{0, 1};
    if (peers->rank() == 1) {
      Processes::note(1, "here");
      ::raise(SIGSTOP);
    } else {
      Processes::await_note_of(1, "told");
    }
    for (int i = 0; i < kSegments; ++i) {
      auto segment = peers->share(name(i), members, 4096, Pages::reserved, 100s);
      auto* value = reinterpret_cast<int*>(segment->data());
      if (peers->rank() == 0) {
        *value = i + 1;
      } else {
        require(*value == i + 1, "segment " + std::to_string(i) + " has another value");
      }
    }
    Processes::note(peers->rank(), "shared");
    if (peers->rank() == 0) Processes::await_note_of(1, "shared");
  });
  ASSERT_TRUE(ranks.await_note(1, "here")) << ranks.error(1);
  ASSERT_TRUE(await([&] { return is_stopped(ranks.pid(1)); }));
  ranks.leave_note(1, "told");
  EXPECT_TRUE(ranks.await_note(0, "shared")) << "blocked by the stopped rank; " << ranks.error(0);
  ranks.signal(1, SIGCONT);
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.await_end(r, 100s), 0) << ranks.error(r);
}

// UndefinedBehaviorSanitizer opens a pipe to probe an address, and reports a bad address if no
// descriptor is left.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kChecksNeedFiles = true;
#else
constexpr bool kChecksNeedFiles = false;
#endif

// Sets the soft limit of a resource while it exists.
class Limited {
 public:
  Limited(int resource, rlim_t most) : resource_(static_cast<decltype(RLIMIT_NOFILE)>(resource)) {
    getrlimit(resource_, &before_);
    const rlimit now{most, before_.rlim_max};
    setrlimit(resource_, &now);
  }
  ~Limited() { setrlimit(resource_, &before_); }

 private:
  decltype(RLIMIT_NOFILE) resource_;
  rlimit before_{};
};

Collective receive_from(int peer, float* x) {
  return {Op::recv, DType::f32, ReduceOp::sum, Traffic::model, nullptr, x, 1, peer, "x"};
}

// Rank 1 has no descriptors left for poll(), which it calls because rank 2 leaves.
TEST(Peers, ReportsWhyARankCannotWatchItsPeers) {
  if (kChecksNeedFiles) GTEST_SKIP() << "the sanitizer itself needs descriptors";
  Processes ranks(3, [](std::shared_ptr<Backend> group) {
    float x = 0;
    if (group->rank() == 2) return Processes::await_note_of(1, "limited");
    if (group->rank() == 0) return group->submit(receive_from(1, &x)).wait();
    std::ofstream note("note.limited.1.new");
    const Limited files(RLIMIT_NOFILE, 1);
    std::rename("note.limited.1.new", "note.limited.1");
    group->submit(receive_from(0, &x)).wait();
  });
  for (const int r : {0, 1}) {
    EXPECT_NE(ranks.await_end(r, 100s), -1) << "rank " << r << " hangs";
    EXPECT_TRUE(contains(ranks.error(r), "rank 1 cannot watch its peers")) << ranks.error(r);
    EXPECT_TRUE(contains(ranks.error(r), "ulimit -n")) << ranks.error(r);
  }
}

TEST(Peers, ReportsATooLowFileLimitBeforeConnecting) {
  const auto store =
      make_file_store(::testing::TempDir() + "few-files-" + std::to_string(getpid()));
  const Limited files(RLIMIT_NOFILE, 40);
  try {
    connect_peers(*store, 0, 100, {100s});
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "rank 0 of 100 needs 44 files")) << error.what();
    EXPECT_TRUE(contains(error.what(), "ulimit -n")) << error.what();
  }
}

// A descriptor that cannot be received is reported, instead of waiting for its segment forever.
TEST(Peers, ReportsThatNoDescriptorIsLeft) {
  if (kChecksNeedFiles) GTEST_SKIP() << "the sanitizer itself needs descriptors";
  Processes ranks(2, [](std::shared_ptr<Backend> group) {
    if (group->rank() == 0) Processes::await_note_of(1, "full");
    const Limited few(RLIMIT_NOFILE, 64);
    std::vector<Fd> files;
    while (group->rank() == 1) {
      if (!files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC)).open()) {
        files.erase(files.end() - 2, files.end());
        Processes::note(1, "full");
        files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
        break;
      }
    }
    try {
      group->symmetric(100);
      group->submit({}).wait();
    } catch (...) {
      files.clear();
      throw;
    }
  });
  for (const int r : {0, 1}) {
    EXPECT_NE(ranks.await_end(r, 100s), -1) << "rank " << r << " hangs";
    EXPECT_TRUE(contains(ranks.error(r), "rank 1 cannot watch its peers")) << ranks.error(r);
    EXPECT_TRUE(contains(ranks.error(r), "ulimit -n")) << ranks.error(r);
  }
}

TEST(SharedMemory, RequestingMoreThanIsAvailableIsAnErrorOnEveryRank) {
  const std::uint64_t available = available_memory();
  ASSERT_GT(available, 1u << 20);
  if (available > std::uint64_t{1} << 45)
    GTEST_SKIP() << "the amount of available memory is unknown";
  Processes ranks(2, [&](std::shared_ptr<Backend> group) {
    group->symmetric(available);  // for each rank
    group->submit({}).wait();
  });
  for (int r = 0; r < 2; ++r) {
    const int status = ranks.await_end(r, 100s);
    EXPECT_TRUE(status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
    EXPECT_TRUE(contains(ranks.error(r), "rank 0")) << ranks.error(r);
    EXPECT_TRUE(contains(ranks.error(r), "cannot reserve")) << ranks.error(r);
    EXPECT_TRUE(contains(ranks.error(r), "are available")) << ranks.error(r);
  }
}

TEST(SharedMemory, ReportsALimitOfFileSizes) {
  Processes ranks(2, [](std::shared_ptr<Backend> group) {
    signal(SIGXFSZ, SIG_IGN);
    std::optional<Limited> files;
    if (group->rank() == 0) files.emplace(RLIMIT_FSIZE, 1 << 20);
    group->symmetric(100);  // fits
    group->symmetric(8 << 20);
    group->submit({}).wait();
  });
  for (int r = 0; r < 2; ++r) {
    EXPECT_NE(ranks.await_end(r, 100s), -1) << "rank " << r << " hangs";
    EXPECT_TRUE(contains(ranks.error(r), "rank 0")) << ranks.error(r);
    EXPECT_TRUE(contains(ranks.error(r), "16.8 MB")) << ranks.error(r);
    EXPECT_TRUE(contains(ranks.error(r), "ulimit -f")) << ranks.error(r);
  }
}

// Reserved memory has all its pages before it is used, other memory only the touched ones.
TEST(SharedMemory, AllocatesReservedPagesImmediately) {
  constexpr std::size_t kBytes = 4 << 20;
  const auto blocks = [](const Fd& fd) {
    struct stat info {};
    fstat(fd.get(), &info);
    return static_cast<std::size_t>(info.st_blocks) * 512;
  };
  const Fd sparse = make_shared_memory(kBytes, Pages::when_touched);
  EXPECT_EQ(blocks(sparse), 0u);
  const Fd whole = make_shared_memory(kBytes, Pages::reserved);
  reserve(whole, 0, kBytes / 2);
  EXPECT_GE(blocks(whole), kBytes / 2);
  reserve(whole, kBytes / 2, kBytes / 2);
  EXPECT_GE(blocks(whole), kBytes);
  const auto segment = map_shared_memory(whole, kBytes);
  EXPECT_TRUE(std::all_of(segment->data(), segment->data() + kBytes,
                          [](std::byte value) { return value == std::byte{0}; }));
}

// Object that an operation keeps alive and that holds the last handle of its group, so the thread
// that ran the operation destroys the group. Tested in processes, because the failure is a hang or
// std::terminate.
struct Kept {
  std::shared_ptr<Backend> group;
  std::shared_ptr<std::atomic<bool>> gone;
  ~Kept() {
    group.reset();
    gone->store(true);
  }
};

void end_in_its_own_thread(Backend& world, const std::string& name, bool wait,
                           const std::function<std::vector<Collective>(int rank)>& calls) {
  const std::vector<int> both{0, 1};
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  auto kept = std::make_shared<Kept>();
  kept->group = world.subgroup(both, name);
  kept->gone = gone;
  Backend& group = *kept->group;
  std::vector<Work> works;
  std::vector<Collective> all = calls(group.rank());
  for (std::size_t i = 0; i + 1 < all.size(); ++i) works.push_back(group.submit(all[i]));
  works.push_back(group.submit(all.back(), {.keep = std::exchange(kept, nullptr)}));
  if (wait) {
    for (const Work& work : works) work.wait();
  }
  require(await([&] { return gone->load(); }), name + ": the group is still there");
  for (const Work& work : works) work.wait();
}

TEST(OwnThread, AnOperationMayHoldTheLastHandleOfItsGroup) {
  Processes ranks(2, [](std::shared_ptr<Backend> world) {
    std::vector<float> x(300'000, 1.0f), y(300'000);
    const auto sum = [&](std::size_t count) {
      return Collective{Op::all_reduce, DType::f32, ReduceOp::sum,
                        Traffic::model, x.data(),   x.data(),
                        count,          -1,         "x"};
    };
    const auto message = [&](int rank, std::size_t count) {
      return Collective{rank == 0 ? Op::send : Op::recv,
                        DType::f32,
                        ReduceOp::sum,
                        Traffic::model,
                        x.data(),
                        y.data(),
                        count,
                        1 - rank,
                        "y"};
    };
    for (const bool wait : {true, false}) {
      for (const std::size_t count : {std::size_t{10}, x.size()}) {
        const std::string which = std::to_string(count) + (wait ? " waited for" : "");
        end_in_its_own_thread(*world, "sums " + which, wait, [&](int) {
          return std::vector<Collective>{sum(count), sum(count), sum(count)};
        });
        end_in_its_own_thread(*world, "messages " + which, wait, [&](int rank) {
          return std::vector<Collective>{message(rank, count), message(rank, count)};
        });
      }
    }
    world->submit({}).wait();
  });
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.await_end(r, 100s), 0) << r << ": " << ranks.error(r);
}

}  // namespace
}  // namespace tessera::comm
