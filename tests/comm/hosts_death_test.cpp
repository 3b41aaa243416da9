// Ranks that die on several simulated hosts: all others name them.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/comm/processes.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using testing::Processes;

// Waits until all ranks of `dead` are reported dead. Until then only ranks of `left` may leave.
void await_deaths(const Peers& peers, const std::vector<int>& dead, const std::vector<int>& left) {
  const auto has = [](const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  Processes::note(peers.rank(), "here");
  for (bool all = false; !all; std::this_thread::sleep_for(2ms)) {
    all = true;
    for (int r = 0; r < peers.size(); ++r) {
      const PeerState state = peers.state(r);
      if (state == PeerState::dead)
        testing::require(has(dead, r), "rank died: " + std::to_string(r));
      if (state == PeerState::left)
        testing::require(has(left, r), "rank left: " + std::to_string(r));
      all = all && (state == PeerState::dead || !has(dead, r));
    }
  }
  Processes::note(peers.rank(), "named");
  Processes::await_note_of(peers.size(), "over");
}

struct Case {
  int ranks;
  int per_host;
  std::vector<int> leave;  // in this order
  std::vector<int> kill;
};

void run(const Case& one) {
  const auto has = [](const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  Processes ranks(
      one.ranks,
      [&](std::shared_ptr<Peers> peers) {
        if (!has(one.leave, peers->rank())) return await_deaths(*peers, one.kill, one.leave);
        Processes::await_note_of(peers->rank(), "leave");
      },
      one.per_host);
  for (const int r : one.leave) {
    ranks.leave_note(r, "leave");
    ASSERT_EQ(ranks.await_end(r, 100s), 0) << ranks.error(r);
  }
  for (int r = 0; r < one.ranks; ++r) {
    if (has(one.leave, r)) continue;
    ASSERT_TRUE(ranks.await_note(r, "here")) << ranks.error(r);
  }
  for (const int r : one.kill) ranks.signal(r, SIGKILL);
  for (int r = 0; r < one.ranks; ++r) {
    if (has(one.leave, r) || has(one.kill, r)) continue;
    EXPECT_TRUE(ranks.await_note(r, "named")) << "rank " << r << ": " << ranks.error(r);
  }
  ranks.leave_note(one.ranks, "over");
  for (int r = 0; r < one.ranks; ++r) {
    if (has(one.leave, r) || has(one.kill, r)) continue;
    EXPECT_EQ(ranks.await_end(r, 100s), 0) << "rank " << r << ": " << ranks.error(r);
  }
}

TEST(HostsDeath, AnyRankIsNamedByAllOthers) {
  for (int victim = 0; victim < 16; victim += 3) run({16, 4, {}, {victim}});
  run({32, 4, {}, {17}});
}

TEST(HostsDeath, DeadRankIsNamedAfterOthersHaveLeft) {
  run({16, 4, {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15}, {12}});
  run({16, 4, {15, 0, 7, 8, 3, 12, 4, 11, 6, 9}, {2}});
  run({16, 2, {1, 2, 4, 8, 15, 14, 12}, {0}});  // all neighbors of the victim
}

TEST(HostsDeath, AllRanksOfAHostAreNamed) {
  run({16, 4, {}, {4, 5, 6, 7}});
  run({16, 4, {}, {0, 1, 2, 3, 8, 9, 10, 11}});
}

TEST(HostsDeath, SeveralRanksOfOneHostAreNamed) { run({16, 0, {3, 9}, {0, 8, 12}}); }

}  // namespace
}  // namespace tessera::comm
