// Ranks that a command starts itself: the failure that the report names, and the exit status.

#include "tessera/process/own_ranks.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <system_error>

#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/message_of.h"
#include "tests/processes.h"

namespace tessera::process {
namespace {

// Script in which `rank` notes a failure after `after` seconds and exits with `status`.
std::string fails(int rank, double after, bool own, int status) {
  return "if [ $RANK = " + std::to_string(rank) + " ]; then sleep " + std::to_string(after) +
         "; echo '{\"rank\":" + std::to_string(rank) +
         ",\"last_step\":3,\"own\":" + (own ? "true" : "false") + ",\"error\":\"failure of " +
         std::to_string(rank) + "\"}' >> /proc/self/fd/$TESSERA_FAILURE_NOTES; exit " +
         std::to_string(status) + "; fi\n";
}

Outcome run_ranks(int ranks, const std::string& script, const Restarts& restarts = {}) {
  Capture err;
  Child child([&] {
    ::dup2(err.fd(), 2);
    OwnRanks own;
    own.ranks = ranks;
    own.threads = 1;
    own.name = "test";
    return start_ranks(own, restarts, {"/bin/sh", "-c", script});
  });
  const int status = child.wait();
  return {status, "", err.text()};
}

TEST(OwnRanks, MustMatchTheRanksOfTheLauncher) {
  EXPECT_EQ(error_of([] { check_given_ranks(4, "mpirun", 4); }), "");
  EXPECT_EQ(error_of([] { check_given_ranks(2, "mpirun", 4); }),
            "--ranks: got 2, but mpirun started 4 ranks. Omit --ranks.");
}

TEST(OwnRanks, ReportsTheLimitOnProcesses) {
  Capture err;
  Child child([&] {
    ::dup2(err.fd(), 2);
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 100;  // root has no such limit
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_NPROC, &none);
    OwnRanks own;
    own.ranks = 2;
    own.name = "test";
    try {  // whichever fails first: a thread of the store, or a process
      start_ranks(own, {}, {"/bin/sh", "-c", "exit 0"});
    } catch (const std::exception& error) {
      write_all(2, message_of(error));
    }
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(
      contains(err.text(), "the limit on processes and threads was reached (ulimit -u is 0)"))
      << err.text();
  const std::system_error thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_TRUE(contains(message_of(thread), "cannot start a thread: the limit"))
      << message_of(thread);
  EXPECT_EQ(message_of(Error("another")), "another");
}

TEST(OwnRanks, ReportsTheRankThatFailedOnItsOwn) {
  // Rank 0 exits first because it saw rank 1 fail.
  const Outcome seen = run_ranks(2, fails(0, 0, false, 1) + fails(1, 0.5, true, 7));
  EXPECT_EQ(seen.status, 7) << seen.err;
  EXPECT_TRUE(contains(seen.err, "tessera test: rank 1 (pid ")) << seen.err;
  EXPECT_LT(seen.err.find("failure of 1"), seen.err.find("failure of 0")) << seen.err;
}

TEST(OwnRanks, ReportsTheRankThatDiedWithoutAMessage) {
  const Outcome seen = run_ranks(
      3, fails(0, 0, false, 1) + fails(2, 0.2, false, 1) + "sleep 0.5; kill -SEGV $$; sleep 9");
  EXPECT_EQ(seen.status, 128 + SIGSEGV) << seen.err;
  EXPECT_TRUE(contains(seen.err, "tessera test: rank 1 (pid ")) << seen.err;
  EXPECT_TRUE(contains(seen.err, "was killed by SIGSEGV")) << seen.err;
}

TEST(OwnRanks, ReportsTheFirstExitIfNoRankReportedAFailure) {
  const Outcome seen = run_ranks(2, "[ $RANK = 1 ] || sleep 0.5; exit $((5 + $RANK))");
  EXPECT_EQ(seen.status, 6) << seen.err;
  EXPECT_TRUE(contains(seen.err, "rank 1 (pid ")) << seen.err;
}

TEST(OwnRanks, PrintNoReportAfterTheStatusOfARankThatPrintedItsError) {
  Restarts restarts;
  restarts.most = 2;
  restarts.told_status = 4;
  const Outcome outcome = run_ranks(2, "[ $RANK = 0 ] && exit 4; exit 0", restarts);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err, "");
}

TEST(OwnRanks, PrintNoReportAfterTheFinalStatus) {
  Restarts restarts;
  restarts.most = 2;
  restarts.final_status = 3;
  restarts.checkpoint = [] { return std::string(); };
  const Outcome outcome = run_ranks(2, "exit 3", restarts);
  EXPECT_EQ(outcome.status, 3);
  EXPECT_EQ(outcome.err, "");
  // But a noted failure is reported.
  restarts.most = 0;
  const Outcome failed = run_ranks(2, fails(1, 0, true, 3) + "sleep 0.5; exit 3", restarts);
  EXPECT_EQ(failed.status, 3);
  EXPECT_TRUE(contains(failed.err, "failure of 1")) << failed.err;
}

}  // namespace
}  // namespace tessera::process
