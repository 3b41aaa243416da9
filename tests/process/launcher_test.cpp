#include "tessera/process/launcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/secret.h"
#include "tessera/comm/store_client.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/process/cpu_topology.h"
#include "tessera/process/host_memory.h"
#include "tessera/process/rendezvous.h"
#include "tests/process/launcher_process.h"

namespace tessera::process {
namespace {

std::vector<std::string> sorted(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(Launcher, PrefixesBothStreams) {
  LauncherProcess launcher(script(3, "echo out $RANK; echo err $RANK >&2"));
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(sorted(launcher.lines()),
            (std::vector<std::string>{"[0] out 0", "[1] out 1", "[2] out 2"}));
  for (const char* line : {"[0] err 0\n", "[1] err 1\n", "[2] err 2\n"}) {
    EXPECT_TRUE(contains(launcher.err(), line)) << launcher.err();
  }
  EXPECT_FALSE(contains(launcher.err(), "tessera run")) << "a success needs no summary";
}

TEST(Launcher, NeverSplitsALine) {
  const std::string text(100, 'x');
  LauncherProcess launcher(
      script(4, "i=0; while [ $i -lt 200 ]; do printf 'first-'; printf '%s-' " + text +
                    "; echo last; i=$((i+1)); done; printf 'no newline'"));
  EXPECT_EQ(launcher.wait(), 0);
  std::map<std::string, int> counts;
  for (const std::string& line : launcher.lines()) ++counts[line];
  for (int rank = 0; rank < 4; ++rank) {
    const std::string prefix = "[" + std::to_string(rank) + "] ";
    EXPECT_EQ(counts[prefix + "first-" + text + "-last"], 200);
    EXPECT_EQ(counts[prefix + "no newline"], 1);
  }
  EXPECT_EQ(counts.size(), 8u);
}

TEST(Launcher, RelaysLargeOutput) {
  LauncherProcess launcher(script(4, "yes 0123456789 | head -n 100000"));
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.out().size(), 4u * 100000u * 15u);
}

TEST(Launcher, LeavesTheOutputUnchangedWithoutPrefix) {
  LaunchOptions options = script(2, "echo plain");
  options.prefix = false;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.out(), "plain\nplain\n");
}

TEST(Launcher, SetsTheVariablesOfTorchrun) {
  LaunchOptions options = script(2, "env");
  options.nodes = 3;
  options.node_rank = 1;
  options.master_addr = "10.0.0.1";
  options.master_port = 1234;
  options.run_id = "run-7";
  options.threads = 5;
  options.environment.push_back("RANK=99");
  options.environment.push_back("KEPT=yes");
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 0);
  const std::vector<std::string> lines = launcher.lines();
  const std::set<std::string> all(lines.begin(), lines.end());
  for (const char* line :
       {"[2] RANK=2", "[3] RANK=3", "[2] LOCAL_RANK=0", "[3] LOCAL_RANK=1", "[2] WORLD_SIZE=6",
        "[2] LOCAL_WORLD_SIZE=2", "[2] NODE_RANK=1", "[2] GROUP_RANK=1", "[2] GROUP_WORLD_SIZE=3",
        "[2] MASTER_ADDR=10.0.0.1", "[2] MASTER_PORT=1234", "[2] OMP_NUM_THREADS=5",
        "[2] TORCHELASTIC_USE_AGENT_STORE=False", "[2] TORCHELASTIC_RUN_ID=run-7",
        "[2] TORCHELASTIC_RESTART_COUNT=0", "[2] TORCHELASTIC_MAX_RESTARTS=0", "[2] KEPT=yes"}) {
    EXPECT_TRUE(all.count(line)) << line;
  }
  EXPECT_FALSE(all.count("[2] RANK=99"));
}

TEST(Launcher, KeepsInheritedOmpNumThreadsForThreadsZero) {
  LaunchOptions options = script(1, "");
  options.threads = 0;
  options.environment = {"OMP_NUM_THREADS=7"};
  const std::vector<std::string> environment = rank_environment(options, 0);
  EXPECT_TRUE(std::count(environment.begin(), environment.end(), "OMP_NUM_THREADS=7"));
}

TEST(Launcher, BindsRanksToTheGivenCpus) {
  const int cpu = allowed_cpus().back();
  LaunchOptions options = script(1, "grep Cpus_allowed_list /proc/self/status");
  options.cpus = {{cpu}};
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(launcher.out(), "[0] Cpus_allowed_list:\t" + std::to_string(cpu) + "\n");
}

TEST(Launcher, PassesStdinToRankZeroOnly) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  ASSERT_EQ(write(fds[1], "hello\n", 6), 6);
  close(fds[1]);
  LaunchOptions options = script(2, "read x; echo \"got <$x>\"");
  options.in = fds[0];
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 0);
  EXPECT_EQ(sorted(launcher.lines()), (std::vector<std::string>{"[0] got <hello>", "[1] got <>"}));
  close(fds[0]);
}

TEST(Launcher, ReturnsTheStatusOfTheRankThatFailed) {
  LaunchOptions options = script(3, "[ $RANK = 1 ] && exit 7; exec sleep 1000");
  options.grace = 0.2;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 7);
  EXPECT_TRUE(contains(launcher.err(), "rank 1 ")) << launcher.err();
  EXPECT_TRUE(contains(launcher.err(), "exited with status 7")) << launcher.err();
  EXPECT_TRUE(contains(launcher.err(), "2 others did not exit within 200 ms")) << launcher.err();
}

TEST(Launcher, ReturnsTheSignalOfTheRankThatWasKilled) {
  LaunchOptions options = script(2, "[ $RANK = 1 ] && kill -9 $$; exec sleep 1000");
  options.grace = 0.2;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  EXPECT_TRUE(contains(launcher.err(), "was killed by SIGKILL")) << launcher.err();
  EXPECT_TRUE(contains(launcher.err(), "by another process") ||
              contains(launcher.err(), "by the kernel, out of memory"))
      << launcher.err();
}

TEST(OutOfMemoryKills, ReportsKillsByTheKernel) {
  const std::string path = ::testing::TempDir() + "memory.events." + std::to_string(getpid());
  const auto write = [&](int kills) {
    std::ofstream(path) << "low 0\nhigh 7\nmax 12\noom 3\noom_kill " << kills << "\n";
  };
  write(4);
  const OutOfMemoryKills kills({"/no/such/file", path});
  EXPECT_TRUE(contains(kills.verdict(), "by another process")) << kills.verdict();
  write(5);
  EXPECT_TRUE(contains(kills.verdict(), "out of memory: oom_kill in " + path + " rose from 4 to 5"))
      << kills.verdict();
  std::remove(path.c_str());
  EXPECT_TRUE(contains(kills.verdict(), "possibly by the kernel")) << kills.verdict();
  EXPECT_TRUE(contains(kills.verdict(), "are available now")) << kills.verdict();
}

// Runs check_open_files() in a process with a limit of `files`, with all of them open if `full`.
int status_of_check(int files, bool full) {
  Child child([&] {
    for (int fd = 3; full && fd < files; ++fd) ::dup2(0, fd);
    const rlimit limit{static_cast<rlim_t>(files), 1024};
    setrlimit(RLIMIT_NOFILE, &limit);
    try {
      check_open_files(20);
    } catch (const Error& error) {
      const std::string text = error.what();
      const bool good = contains(text, "20 ranks need about ") &&
                        contains(text, " open files per process, but the limit is " +
                                           std::to_string(files) + ". Raise it (ulimit -n ");
      return good ? 0 : 1;
    }
    return 2;
  });
  return child.wait();
}

TEST(Launcher, CheckOpenFilesThrowsIfTheLimitIsTooLow) {
  EXPECT_EQ(status_of_check(40, false), 0);
  check_open_files(1);
}

TEST(Launcher, CheckOpenFilesThrowsIfNoDescriptorIsLeft) {
#ifdef __SANITIZE_ADDRESS__
  // UndefinedBehaviorSanitizer opens a pipe to probe an address, and reports a bad address if no
  // descriptor is left.
  GTEST_SKIP() << "the sanitizer needs descriptors itself";
#endif
  EXPECT_EQ(status_of_check(8, true), 0);
}

// The output file has reached the size limit: the run ends with a status, not by a signal.
TEST(Launcher, ReportsAnOutputFileAtTheSizeLimit) {
  const std::string path = ::testing::TempDir() + "full." + std::to_string(getpid());
  Capture err;
  LaunchOptions options = script(1, "yes 0123456789 | head -n 10000; exit 3");
  Child launcher([&] {
    const rlimit limit{4096, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    options.out = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    options.err = err.fd();
    return launched(options);
  });
  const int status = launcher.wait();
  EXPECT_NE(status, 0);
  EXPECT_NE(status, 128 + SIGXFSZ);
  EXPECT_TRUE(contains(err.text(), "cannot write the output: File too large")) << err.text();
  std::remove(path.c_str());
}

TEST(Launcher, GivesOtherRanksTimeToReportAFailure) {
  // Rank 0 waits until the launcher has reaped rank 1.
  const std::string note = ::testing::TempDir() + "pid." + std::to_string(getpid());
  LaunchOptions options =
      script(2, "note=" + note +
                    "; if [ $RANK = 1 ]; then echo $$ > $note.new; mv $note.new $note; exit 3; fi;"
                    "until [ -e $note ]; do sleep 0.02; done;"
                    "while kill -0 $(cat $note) 2>/dev/null; do sleep 0.02; done;"
                    "rm $note; echo rank 1 is gone; exit 4");
  options.grace = kHang;
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 3) << "the first failure counts, not the last";
  EXPECT_EQ(launcher.out(), "[0] rank 1 is gone\n");
  EXPECT_FALSE(contains(launcher.err(), "had to be terminated")) << launcher.err();
}

// A rank that exits before it joined has no connection whose close the others could see.
TEST(Launcher, NotifiesRanksThatWaitForAFailedRankToJoin) {
  const Capture out, err;
  LaunchOptions options = script(2, "[ $RANK = 1 ] && kill -9 $$; exec sleep 1000");
  options.out = out.fd();
  options.err = err.fd();
  options.grace = kHang;  // the notification must not wait for this
  const BlockedSignals signals;
  const Rendezvous rendezvous(options, {});
  const std::size_t colon = options.store.rfind(':');
  const comm::StoreClientOptions client{{options.store.substr(0, colon)},
                                        std::stoi(options.store.substr(colon + 1)),
                                        comm::read_secret_descriptor(options.secret_fd),
                                        options.run(),
                                        0,
                                        2,
                                        std::chrono::seconds(static_cast<int>(kHang))};
  std::string message;
  int failed_rank = -1;
  std::thread rank_0([&] {
    try {
      comm::connect_store(client)->get("peers/1", client.timeout);
    } catch (const PeerError& error) {
      message = error.what();
      failed_rank = error.rank();
    } catch (const std::exception& error) {
      message = error.what();
    }
    ::kill(::getpid(), SIGTERM);  // lets launch() return
  });
  const LaunchResult result = launch(options, signals);
  rank_0.join();
  EXPECT_EQ(failed_rank, 1) << message;
  EXPECT_TRUE(contains(message, "was killed by SIGKILL")) << message;
  EXPECT_EQ(result.failed_rank, 1);
}

TEST(Launcher, ReturnsStatus127IfTheProgramIsNotFound) {
  LaunchOptions options = script(2, "");
  options.command = {"./no-such-program"};
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 127);
  EXPECT_TRUE(contains(launcher.err(), "cannot find the program \"./no-such-program\""));
  options.command = {"no-such-program"};
  EXPECT_EQ(LauncherProcess(options).wait(), 127);
}

TEST(Launcher, ReturnsStatus126IfTheProgramCannotBeExecuted) {
  LaunchOptions options = script(2, "");
  options.command = {"/etc/passwd"};
  LauncherProcess launcher(options);
  EXPECT_EQ(launcher.wait(), 126);
  EXPECT_TRUE(contains(launcher.err(), "cannot execute /etc/passwd")) << launcher.err();
}

TEST(Launcher, GivesRanksABrokenPipeWhenItsOutputIsClosed) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  Capture err;
  LaunchOptions options = script(2, "exec yes");
  options.out = fds[1];
  options.err = err.fd();
  Child launcher([&] {
    close(fds[0]);
    return launched(options);
  });
  close(fds[1]);
  char byte = 0;
  EXPECT_EQ(read(fds[0], &byte, 1), 1);
  close(fds[0]);
  EXPECT_EQ(launcher.wait(), 128 + SIGPIPE) << err.text();
}

TEST(Launcher, ColorsPrefixesAndReadsATerminal) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
    GTEST_SKIP() << "no pseudo-terminals here";
  }
  const std::string path = ptsname(terminal);
  LaunchOptions options = script(2, "read x; echo \"got <$x>\"");
  Child launcher([&] {
    setsid();
    const int fd = open(path.c_str(), O_RDWR);  // becomes the controlling terminal
    options.in = options.out = options.err = fd;
    return launched(options);
  });
  ASSERT_EQ(write(terminal, "hello\n", 6), 6);
  std::string text;
  fcntl(terminal, F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(wait_until([&] {
    char buffer[4096];
    const ssize_t count = read(terminal, buffer, sizeof buffer);
    if (count > 0) text.append(buffer, as_size(count));
    return contains(text, "got <hello>") && contains(text, "got <>");
  })) << text;
  EXPECT_TRUE(contains(text, "\x1b[31m[0]\x1b[0m got <hello>")) << text;
  EXPECT_TRUE(contains(text, "\x1b[32m[1]\x1b[0m got <>")) << text;
  EXPECT_EQ(launcher.wait(), 0);
  close(terminal);
}

TEST(Launcher, NamesSignals) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(signal_name(63), "signal 63");
}

}  // namespace
}  // namespace tessera::process
