// Members of the generations of a job, by the processes that are lost and return.

#include "tessera/process/coordinator.h"

#include <gtest/gtest.h>

namespace tessera::process {
namespace {

using Change = Coordinator::Change;
using Members = std::vector<int>;

RecoveryOptions options(std::vector<std::vector<int>> replicas, int most = 10, int spares = 0) {
  RecoveryOptions options;
  options.most = most;
  options.spares = spares;
  options.replicas = std::move(replicas);
  options.fit = [](int whole) { return whole; };
  options.by_rank = [](const std::vector<std::vector<int>>& seats) {
    Members all;
    for (const auto& each : seats) all.insert(all.end(), each.begin(), each.end());
    return all;
  };
  return options;
}

// All members report that they have the state.
Change establish(Coordinator& coordinator) {
  const comm::Generation now = coordinator.current();
  Change change = Change::none;
  for (const int process : now.members) change = coordinator.established(process, now.number);
  return change;
}

TEST(Coordinator, ContinuesWithTheOthersAndAppendsTheReplacement) {
  Coordinator job(options({{0}, {1}, {2}}));
  EXPECT_EQ(job.current().members, (Members{0, 1, 2}));
  EXPECT_FALSE(job.current().trained);
  EXPECT_EQ(establish(job), Change::none);
  EXPECT_EQ(job.lost(0), Change::next);
  EXPECT_EQ(job.current().number, 2);
  EXPECT_EQ(job.current().members, (Members{1, 2}));
  EXPECT_TRUE(job.current().trained);
  EXPECT_EQ(job.ready(0), Change::none) << "the current generation is being established";
  EXPECT_EQ(establish(job), Change::next);
  EXPECT_EQ(job.current().members, (Members{1, 2, 0}));
  EXPECT_EQ(job.established(1, 2), Change::none) << "an old generation";
}

TEST(Coordinator, WaitsForAllProcessesOfABrokenReplica) {
  Coordinator job(options({{0, 1}, {2, 3}}));
  establish(job);
  EXPECT_EQ(job.lost(3), Change::next);
  EXPECT_EQ(job.current().members, (Members{0, 1}));
  establish(job);
  EXPECT_EQ(job.ready(3), Change::none);
  EXPECT_EQ(job.ready(2), Change::next);
  EXPECT_EQ(job.current().members, (Members{0, 1, 2, 3}));
}

TEST(Coordinator, FailsWithoutAWholeReplicaThatHasTheState) {
  Coordinator job(options({{0}, {1}}));
  establish(job);
  EXPECT_EQ(job.lost(1), Change::next);
  establish(job);
  EXPECT_EQ(job.ready(1), Change::next);
  EXPECT_EQ(job.established(0, 3), Change::none);
  EXPECT_EQ(job.lost(0), Change::failed) << "process 1 has not received the state yet";

  Coordinator start(options({{0}, {1}}));
  EXPECT_EQ(start.lost(0), Change::next) << "nothing is trained, so process 1 starts alone";
  EXPECT_EQ(start.current().members, (Members{1}));
  EXPECT_EQ(start.lost(1), Change::failed);
}

TEST(Coordinator, ASpareTakesTheSeatAtOnce) {
  Coordinator job(options({{0}, {1}}, 10, 1));
  EXPECT_EQ(job.ready(2), Change::none);
  establish(job);
  EXPECT_EQ(job.lost(1), Change::next);
  EXPECT_EQ(job.current().members, (Members{0, 2}));
  establish(job);
  EXPECT_EQ(job.ready(1), Change::none) << "it is the spare now";
  EXPECT_EQ(job.lost(2), Change::next);
  EXPECT_EQ(job.current().members, (Members{0, 1}));
}

TEST(Coordinator, LeavesOutReplicasThatDoNotDivideTheBatch) {
  RecoveryOptions given = options({{0}, {1}, {2}, {3}});
  given.fit = [](int whole) { return whole == 3 ? 2 : whole; };
  Coordinator job(given);
  establish(job);
  EXPECT_EQ(job.lost(1), Change::next);
  EXPECT_EQ(job.current().members, (Members{0, 2}));
  establish(job);
  EXPECT_EQ(job.ready(3), Change::none);
  EXPECT_EQ(job.ready(1), Change::next);
  EXPECT_EQ(job.current().members, (Members{0, 2, 1, 3}));
}

TEST(Coordinator, FormsTheSameMembersAgain) {
  Coordinator job(options({{0}, {1}}));
  EXPECT_EQ(job.retry(), Change::next);
  EXPECT_EQ(job.current().number, 2);
  EXPECT_EQ(job.current().members, (Members{0, 1}));
}

TEST(Coordinator, EndsAfterTheAllowedLossesAndAtTheEndOfTraining) {
  Coordinator job(options({{0}, {1}}, 1));
  establish(job);
  EXPECT_EQ(job.lost(1), Change::next);
  EXPECT_EQ(job.lost(1), Change::failed);

  Coordinator done(options({{0}, {1}}));
  EXPECT_EQ(done.finish(), Change::next);
  EXPECT_TRUE(done.current().over);
  EXPECT_EQ(done.finish(), Change::none);
  EXPECT_EQ(done.lost(0), Change::none);
}

}  // namespace
}  // namespace tessera::process
