// Shutdown of runs: signals to the launcher and its ranks, the timeout, and leftover processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tessera/process/launcher.h"
#include "tests/process/launcher_process.h"

namespace tessera::process {
namespace {

TEST(Launcher, KillsRanksThatIgnoreSigtermOrAreStopped) {
  LaunchOptions options = script(3,
                                 "[ $RANK = 1 ] && exit 5;"
                                 "[ $RANK = 0 ] && trap '' TERM;"
                                 "[ $RANK = 2 ] && kill -STOP $$;"
                                 "while :; do sleep 0.05; done");
  options.grace = 0.1;
  options.term_grace = 0.3;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 5);
}

class ForwardedSignal : public ::testing::TestWithParam<int> {};

TEST_P(ForwardedSignal, ReachesEveryRank) {
  const std::string name = signal_name(GetParam()).substr(3);
  LauncherProcess launcher(script(3, "trap 'echo got " + name + "; exit 0' " + name +
                                         "; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(launcher.saw("ready", 3));
  launcher.process().signal(GetParam());
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_TRUE(launcher.saw("got " + name, 3)) << launcher.out();
}

INSTANTIATE_TEST_SUITE_P(Launcher, ForwardedSignal,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2),
                         [](const auto& info) { return signal_name(info.param); });

TEST(Launcher, KillsOnTheSecondStopSignal) {
  LauncherProcess launcher(script(2, "trap '' INT; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(launcher.saw("ready", 2));
  launcher.process().signal(SIGINT);
  launcher.process().signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
}

// Descendants of the unresponsive ranks are killed too, without a second signal.
TEST(Launcher, KillsAndReportsRanksThatIgnoreAStopSignal) {
  LaunchOptions options = script(3,
                                 "[ $RANK = 1 ] || trap '' TERM; sleep 1000 & echo pids $$ $!;"
                                 "while :; do sleep 0.05; done");
  options.stop_grace = 0.2;
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.saw("pids", 3));
  launcher.process().signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGTERM) << "status of the rank that exited first";
  EXPECT_TRUE(contains(launcher.err(), "ranks 0, 2 did not exit within 200 ms of SIGTERM: killed"))
      << launcher.err();
  const std::vector<pid_t> pids = printed_pids(launcher);
  ASSERT_EQ(pids.size(), 6u);
  for (pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return is_gone(pid); })) << pid;
}

// A rank that exits on request does not shorten the time of the others.
TEST(Launcher, GivesOtherRanksTimeToSaveAfterAStopSignal) {
  const std::string note = ::testing::TempDir() + "pid." + std::to_string(getpid());
  LaunchOptions options =
      script(2, "note=" + note +
                    "; if [ $RANK = 1 ]; then echo $$ > $note.new; mv $note.new $note;"
                    "  echo ready; while :; do sleep 0.05; done; fi;"
                    "asked=0; trap 'asked=1' TERM; echo ready;"
                    "until [ $asked = 1 ]; do sleep 0.02; done;"
                    "while kill -0 $(cat $note) 2>/dev/null; do sleep 0.02; done;"
                    "sleep 0.3; rm $note; echo saved");
  options.grace = options.term_grace = 0.01;  // apply after a failure only
  options.stop_grace = kHang;
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.saw("ready", 2));
  launcher.process().signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGTERM);
  EXPECT_TRUE(contains(launcher.out(), "[0] saved")) << launcher.out() << launcher.err();
}

TEST(Launcher, TerminatesTheRunAfterTheTimeout) {
  LaunchOptions options = script(2, "exec sleep 1000");
  options.timeout = 0.2;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 124);
  EXPECT_TRUE(contains(launcher.err(), "timeout of 200 ms")) << launcher.err();
}

TEST(Launcher, LeavesNoProcessWhenItIsKilled) {
  LauncherProcess launcher(script(3, "sleep 1000 & echo pids $$ $!; wait"));
  ASSERT_TRUE(launcher.saw("pids", 3));
  const std::vector<pid_t> pids = printed_pids(launcher);
  ASSERT_EQ(pids.size(), 6u);
  for (pid_t pid : pids) EXPECT_FALSE(is_gone(pid));
  launcher.process().signal(SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  for (pid_t pid : pids) {
    EXPECT_TRUE(wait_until([&] { return is_gone(pid); })) << pid << " is still running";
  }
}

TEST(Launcher, KillsDescendantsOfARankThatExits) {
  LauncherProcess launcher(script(2, "sleep 1000 & echo pids $$ $!"));
  EXPECT_EQ(launcher.wait(), 0);
  const std::vector<pid_t> pids = printed_pids(launcher);
  ASSERT_EQ(pids.size(), 4u);
  for (pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return is_gone(pid); }));
}

// A thread that existed before and blocks no signals, like the one a GPU driver starts.
class ThreadWithoutMask {
 public:
  ThreadWithoutMask()
      : thread_([this] {
          while (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }) {}
  ~ThreadWithoutMask() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST(Launcher, ReceivesSignalsDeliveredToOtherThreads) {
  Capture out, err;
  LaunchOptions options = script(2, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done");
  options.out = out.fd();
  options.err = err.fd();
  Child launcher([&] {
    const ThreadWithoutMask thread;
    // Exits of ranks first: without forwarding, some SIGCHLD would be lost.
    for (int i = 0; i < 20; ++i) {
      if (launched(script(2, "exit 0")) != 0) return 77;
    }
    return launched(options);
  });
  ASSERT_TRUE(wait_until([&] { return out.lines().size() == 2; })) << out.text() << err.text();
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 9) << out.text() << err.text();
}

// A signal that arrives while the handlers are installed must not be resent forever.
TEST(Launcher, ToleratesSignalsWhileBlockingThem) {
  Child launcher([] {
    const pid_t parent = ::getpid();
    const Child sender([parent] {
      while (::getppid() == parent) ::kill(parent, SIGCHLD);
      return 0;
    });
    for (int i = 0; i < 20'000; ++i) const BlockedSignals signals;
    return 0;
  });
  EXPECT_EQ(launcher.wait(), 0);
}

TEST(Launcher, HandlesSignalsWhileItsOutputIsNotRead) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  Capture err;
  LaunchOptions options = script(2, "exec yes");
  options.out = fds[1];
  options.err = err.fd();
  Child launcher([&] { return launched(options); });
  int waiting = 0;
  ASSERT_TRUE(wait_until([&] { return ioctl(fds[0], FIONREAD, &waiting) == 0 && waiting > 4096; }));
  launcher.signal(SIGTERM);
  launcher.signal(SIGINT);
  EXPECT_NE(launcher.wait(), -1);
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace tessera::process
