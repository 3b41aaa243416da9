#include "tessera/process/stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/core/index.h"
#include "tessera/core/text.h"

// Exported, so that the stacks contain their names.
extern "C" {
__attribute__((noinline)) void tessera_test_spins(const std::atomic<bool>& go_on) {
  while (!go_on) {
  }
}
__attribute__((noinline)) void tessera_test_waits(std::mutex& mutex, std::condition_variable& turn,
                                                  const std::atomic<bool>& go_on) {
  std::unique_lock lock(mutex);
  turn.wait(lock, [&] { return go_on.load(); });
  lock.unlock();  // keeps the wait from becoming a tail call
}
}

namespace tessera::process {
namespace {

// A thread that runs `body`, which returns when the test allows it.
class Busy {
 public:
  template <typename Body>
  explicit Busy(Body body)
      : thread_([this, body] {
          OwnStack stack;
          stack_ = &stack;
          body();
          stack_ = nullptr;
          while (!over_) std::this_thread::yield();
        }) {
    while (stack_ == nullptr) std::this_thread::yield();
  }
  ~Busy() {
    over_ = true;
    thread_.join();
  }
  OwnStack& stack() { return *stack_; }

 private:
  std::atomic<OwnStack*> stack_{nullptr};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Reads until the thread has arrived in `name`.
std::string stack_with(OwnStack& stack, const std::string& name) {
  std::string text;
  for (int i = 0; i < 10'000 && text.find(name) == std::string::npos; ++i) {
    text = join(stack.read(), "\n");
  }
  return text;
}

TEST(OwnStack, ShowsWhereAThreadSpins) {
  std::atomic<bool> go_on{false};
  Busy busy([&] { tessera_test_spins(go_on); });
  const std::string text = stack_with(busy.stack(), "tessera_test_spins");
  // Innermost, but for the calls of the load itself where nothing is inlined.
#ifdef __OPTIMIZE__
  constexpr int kWithin = 0;
#else
  constexpr int kWithin = 4;
#endif
  const std::size_t at = text.find("tessera_test_spins");
  ASSERT_NE(at, std::string::npos) << text;
  const std::size_t before = text.rfind('\n', at);
  const std::string line = text.substr(before + 1, at - before - 1);  // npos + 1 is the beginning
  EXPECT_EQ(line.rfind("stack_test+0x", 0), 0u) << text;
  EXPECT_LE(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'), kWithin)
      << text;
  go_on = true;
}

TEST(OwnStack, ShowsWhereAThreadWaitsWithoutWakingIt) {
  std::mutex mutex;
  std::condition_variable turn;
  std::atomic<bool> go_on{false};
  Busy busy([&] { tessera_test_waits(mutex, turn, go_on); });
  const std::string text = stack_with(busy.stack(), "tessera_test_waits");
  EXPECT_NE(text.find("tessera_test_waits"), std::string::npos) << text;
  EXPECT_EQ(text.find("OwnStack::walk"), std::string::npos) << text;
  EXPECT_LE(busy.stack().read().size(), as_size(OwnStack::kFrames));
  {
    const std::lock_guard lock(mutex);
    go_on = true;
  }
  turn.notify_all();
}

TEST(OwnStack, KeepsThreadsApart) {
  std::mutex mutex;
  std::condition_variable turn;
  std::atomic<bool> go_on{false};
  Busy spins([&] { tessera_test_spins(go_on); });
  Busy waits([&] { tessera_test_waits(mutex, turn, go_on); });
  stack_with(spins.stack(), "tessera_test_spins");
  stack_with(waits.stack(), "tessera_test_waits");
  for (int i = 0; i < 100; ++i) {
    const std::string one = join(spins.stack().read(), "\n");
    const std::string other = join(waits.stack().read(), "\n");
    EXPECT_NE(one.find("tessera_test_spins"), std::string::npos) << one;
    EXPECT_NE(other.find("tessera_test_waits"), std::string::npos) << other;
    EXPECT_EQ(one.find("tessera_test_waits"), std::string::npos) << one;
  }
  {
    const std::lock_guard lock(mutex);
    go_on = true;
  }
  turn.notify_all();
}

TEST(OwnStack, OtherStacksMergesEqualStacks) {
  std::mutex mutex;
  std::condition_variable turn;
  std::atomic<bool> go_on{false};
  Busy spins([&] { tessera_test_spins(go_on); });
  const auto wait = [&] { tessera_test_waits(mutex, turn, go_on); };
  Busy waits(wait), waits_too(wait);
  for (Busy* each : {&waits, &waits_too}) stack_with(each->stack(), "tessera_test_waits");
  stack_with(spins.stack(), "tessera_test_spins");
  int spinning = 0, waiting = 0, entries = 0;
  for (const ThreadCalls& one : other_stacks(std::chrono::seconds(10))) {
    const std::string text = join(one.calls, "\n");
    if (text.find("tessera_test_spins") != std::string::npos) spinning += one.threads;
    if (text.find("tessera_test_waits") == std::string::npos) continue;
    waiting += one.threads;
    ++entries;
  }
  EXPECT_EQ(spinning, 1);
  EXPECT_EQ(waiting, 2);
  EXPECT_EQ(entries, 1);
  {
    const std::lock_guard lock(mutex);
    go_on = true;
  }
  turn.notify_all();
}

// A signal that is handled after read() timed out is harmless; the next read() gets the result.
TEST(OwnStack, ToleratesALateResponse) {
  sigset_t all, before;
  sigfillset(&all);
  OwnStack stack;
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  std::vector<std::string> lines;
  std::thread([&] { lines = stack.read(std::chrono::milliseconds(5)); }).join();
  EXPECT_EQ(lines, std::vector<std::string>{"the thread did not respond"});
  std::thread([&] { lines = stack.read(std::chrono::milliseconds(5)); }).join();
  EXPECT_EQ(lines, std::vector<std::string>{"the thread did not respond"});
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::thread([&] { lines = stack.read(); }).join();
  EXPECT_GT(lines.size(), 2u);
  std::thread([&] { lines = stack.read(); }).join();
  EXPECT_GT(lines.size(), 2u);
}

TEST(OwnStack, DescribesAddressesWithAndWithoutAName) {
  int here = 0;
  EXPECT_EQ(describe_address(&here).rfind("0x", 0), 0u);
  const std::string known = describe_address(reinterpret_cast<const void*>(&tessera_test_spins));
  EXPECT_NE(known.find(" tessera_test_spins"), std::string::npos) << known;
}

}  // namespace
}  // namespace tessera::process
