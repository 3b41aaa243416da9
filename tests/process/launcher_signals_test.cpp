// How runs end: signals to the launcher and to its ranks, the timeout, and what stays behind.
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

TEST(Launcher, KillsWhatIgnoresSigtermOrIsStopped) {
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

TEST(Launcher, ASecondInterruptKills) {
  LauncherProcess launcher(script(2, "trap '' INT; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(launcher.saw("ready", 2));
  launcher.process().signal(SIGINT);
  launcher.process().signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
}

// What the deaf ranks have started goes with them, and nobody waits for a second signal.
TEST(Launcher, RanksThatIgnoreASignalAreKilledAndNamed) {
  LaunchOptions options = script(3,
                                 "[ $RANK = 1 ] || trap '' TERM; sleep 1000 & echo pids $$ $!;"
                                 "while :; do sleep 0.05; done");
  options.stop_grace = 0.2;
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.saw("pids", 3));
  launcher.process().signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGTERM) << "that of the rank that ended first";
  EXPECT_TRUE(contains(launcher.err(), "ranks 0, 2 did not end within 200 ms of SIGTERM: killed"))
      << launcher.err();
  const std::vector<pid_t> pids = printed_pids(launcher);
  ASSERT_EQ(pids.size(), 6u);
  for (pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return is_gone(pid); })) << pid;
}

// One that ends because it was asked to does not shorten the time of the others.
TEST(Launcher, ASignalLeavesTheOthersTimeToSave) {
  const std::string note = ::testing::TempDir() + "pid." + std::to_string(getpid());
  LaunchOptions options =
      script(2, "note=" + note +
                    "; if [ $RANK = 1 ]; then echo $$ > $note.new; mv $note.new $note;"
                    "  echo ready; while :; do sleep 0.05; done; fi;"
                    "asked=0; trap 'asked=1' TERM; echo ready;"
                    "until [ $asked = 1 ]; do sleep 0.02; done;"
                    "while kill -0 $(cat $note) 2>/dev/null; do sleep 0.02; done;"
                    "sleep 0.3; rm $note; echo saved");
  options.grace = options.term_grace = 0.01;  // what they would have after a failure
  options.stop_grace = kHang;
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.saw("ready", 2));
  launcher.process().signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 128 + SIGTERM);
  EXPECT_TRUE(contains(launcher.out(), "[0] saved")) << launcher.out() << launcher.err();
}

TEST(Launcher, TheTimeoutEndsTheRun) {
  LaunchOptions options = script(2, "exec sleep 1000");
  options.timeout = 0.2;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 124);
  EXPECT_TRUE(contains(launcher.err(), "timeout of 200 ms")) << launcher.err();
}

TEST(Launcher, NothingStaysBehindWhenItIsKilled) {
  LauncherProcess launcher(script(3, "sleep 1000 & echo pids $$ $!; wait"));
  ASSERT_TRUE(launcher.saw("pids", 3));
  const std::vector<pid_t> pids = printed_pids(launcher);
  ASSERT_EQ(pids.size(), 6u);
  for (pid_t pid : pids) EXPECT_FALSE(is_gone(pid));
  launcher.process().signal(SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  for (pid_t pid : pids) {
    EXPECT_TRUE(wait_until([&] { return is_gone(pid); })) << pid << " is still there";
  }
}

TEST(Launcher, WhatARankHasStartedEndsWithIt) {
  LauncherProcess launcher(script(2, "sleep 1000 & echo pids $$ $!"));
  EXPECT_EQ(launcher.wait(), 0);
  const std::vector<pid_t> pids = printed_pids(launcher);
  ASSERT_EQ(pids.size(), 4u);
  for (pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return is_gone(pid); }));
}

// A thread that was there before and blocks nothing, as the driver of a GPU starts one.
class Deaf {
 public:
  Deaf()
      : thread_([this] {
          while (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }) {}
  ~Deaf() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST(Launcher, SignalsReachItWhateverThreadGetsThem) {
  Capture out, err;
  LaunchOptions options = script(2, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.02; done");
  options.out = out.fd();
  options.err = err.fd();
  Child launcher([&] {
    const Deaf deaf;
    // Ends of ranks first: one in a few would be lost.
    for (int i = 0; i < 20; ++i) {
      if (launched(script(2, "exit 0")) != 0) return 77;
    }
    return launched(options);
  });
  ASSERT_TRUE(wait_until([&] { return out.lines().size() == 2; })) << out.text() << err.text();
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait(), 9) << out.text() << err.text();
}

// One that comes while they are being blocked is not sent round and round.
TEST(Launcher, SignalsMayComeWhileTheyAreBeingBlocked) {
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

TEST(Launcher, AnOutputThatNobodyReadsDoesNotBlockSignals) {
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
