// The control connections of ranks on several simulated hosts, with ranks as threads. Ranks that
// die are in hosts_death_test.cpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <random>

#include "tessera/comm/control_graph.h"
#include "tessera/comm/membership.h"
#include "tests/comm/strangers.h"

namespace tessera::comm {
namespace {

using namespace testing;

int log2_rounded_up(int size) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
}

TEST(ControlGraph, IsSymmetricAndConnectsAllRanksInFewHops) {
  std::vector<int> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {511, 512, 513, 1000, 1023, 1024, 1025, 2000, 4095, 4096});
  for (const int size : sizes) {
    std::vector<std::vector<int>> neighbors;
    for (int r = 0; r < size; ++r) neighbors.push_back(control_neighbors(r, size));
    std::vector<int> hops(static_cast<std::size_t>(size), -1), reached{0};
    hops[0] = 0;
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for (const int next : neighbors[static_cast<std::size_t>(reached[i])]) {
        int& distance = hops[static_cast<std::size_t>(next)];
        if (distance >= 0) continue;
        distance = hops[static_cast<std::size_t>(reached[i])] + 1;
        reached.push_back(next);
      }
    }
    ASSERT_EQ(reached.size(), static_cast<std::size_t>(size));
    ASSERT_LE(*std::max_element(hops.begin(), hops.end()), log2_rounded_up(size)) << size;
    for (int r = 0; r < size; ++r) {
      const auto& own = neighbors[static_cast<std::size_t>(r)];
      ASSERT_LE(own.size(), static_cast<std::size_t>(2 * log2_rounded_up(size))) << size;
      for (const int other : own) {
        const auto& theirs = neighbors[static_cast<std::size_t>(other)];
        ASSERT_NE(other, r);
        ASSERT_TRUE(std::binary_search(theirs.begin(), theirs.end(), r)) << size;
      }
    }
  }
}

// Ranks of a job as threads; hosts[r] is the host on which rank r appears to be.
std::vector<std::shared_ptr<Peers>> start_job(const std::vector<int>& hosts) {
  MemoryStore store;
  PeersOptions options;
  options.timeout = kHang;
  options.secret = random_secret();
  options.address = "127.0.0.1";
  std::vector<std::future<std::shared_ptr<Peers>>> starting;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    options.host = "host " + std::to_string(hosts[r]);
    starting.push_back(
        start_rank(store, static_cast<int>(r), static_cast<int>(hosts.size()), options));
  }
  std::vector<std::shared_ptr<Peers>> peers;
  for (auto& rank : starting) peers.push_back(rank.get());
  return peers;
}

std::vector<int> blocks(int ranks, int per_host) {
  std::vector<int> hosts;
  for (int r = 0; r < ranks; ++r) hosts.push_back(r / per_host);
  return hosts;
}

std::vector<std::vector<int>> layouts() {
  std::vector<int> interleaved, uneven{0};
  for (int r = 0; r < 16; ++r) interleaved.push_back(r % 4);
  for (int r = 1; r < 17; ++r) uneven.push_back(r < 12 ? 1 : 2);
  return {blocks(16, 4), interleaved, uneven, blocks(16, 16)};
}

std::string next_note(Peers& peers, int from) {
  std::optional<std::string> note;
  EXPECT_TRUE(wait_until([&] { return (note = peers.take_note(from, "topic")).has_value(); }));
  return note.value_or("");
}

TEST(Control, NotesBetweenAnyTwoRanksArriveInOrder) {
  for (const std::vector<int>& hosts : layouts()) {
    const auto peers = start_job(hosts);
    constexpr int kNotes = 20;
    std::vector<std::thread> senders;  // at once, so that ranks dial each other
    for (const auto& own : peers) {
      senders.emplace_back([&own] {
        for (int i = 0; i < kNotes; ++i) {
          for (int r = 0; r < own->size(); ++r) own->send_note(r, "topic", std::to_string(i));
        }
      });
    }
    for (std::thread& sender : senders) sender.join();
    for (const auto& own : peers) {
      for (int r = 0; r < own->size(); ++r) {
        for (int i = 0; i < kNotes && r != own->rank(); ++i) {
          ASSERT_EQ(next_note(*own, r), std::to_string(i)) << r << " to " << own->rank();
        }
      }
    }
  }
}

TEST(Control, MemoryIsSharedOnEachHost) {
  for (const std::vector<int>& hosts : layouts()) {
    const auto peers = start_job(hosts);
    for (int host = 0; host <= *std::max_element(hosts.begin(), hosts.end()); ++host) {
      std::vector<int> members;
      for (std::size_t r = 0; r < hosts.size(); ++r) {
        if (hosts[r] == host) members.push_back(static_cast<int>(r));
      }
      for (const int member : members) {
        auto& own = *peers[static_cast<std::size_t>(member)];
        const auto segment = own.share("memory", members, 4096, Pages::reserved, kHang);
        if (member == members.front()) segment->data()[7] = static_cast<std::byte>(host + 1);
        EXPECT_EQ(segment->data()[7], static_cast<std::byte>(host + 1));
        EXPECT_TRUE(own.same_host(members.front()));
      }
    }
  }
}

TEST(Control, AFailureReachesAllRanks) {
  for (const std::vector<int>& hosts : layouts()) {
    const auto peers = start_job(hosts);
    peers[5]->report({Failure::Kind::usage, 3, 5, "text of the failure"});
    for (const auto& own : peers) {
      ASSERT_TRUE(wait_until([&] { return own->failure().has_value(); })) << own->rank();
      EXPECT_EQ(own->failure()->text, "text of the failure");
      EXPECT_EQ(own->failure()->rank, 3);
      EXPECT_EQ(own->failure()->reporter, 5);
    }
  }
}

// Ranks leave in any order until two remain. No departure is reported as a death, and facts still
// reach the remaining ranks.
TEST(Control, RanksLeaveInAnyOrder) {
  std::mt19937 random(7);
  for (const std::vector<int>& hosts : layouts()) {
    auto peers = start_job(hosts);
    std::vector<int> order(peers.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    // Some at once, the others one by one.
    std::vector<std::thread> leaving;
    for (std::size_t i = 0; i + 6 < order.size(); ++i) {
      auto& own = peers[static_cast<std::size_t>(order[i])];
      leaving.emplace_back([&own] { own.reset(); });
    }
    for (std::thread& thread : leaving) thread.join();
    for (std::size_t i = order.size() - 6; i + 2 < order.size(); ++i) {
      peers[static_cast<std::size_t>(order[i])].reset();
      for (const auto& own : peers) {
        if (!own) continue;
        EXPECT_TRUE(wait_until([&] { return own->state(order[i]) != PeerState::alive; }));
        for (std::size_t j = 0; j <= i; ++j) {
          EXPECT_NE(own->state(order[j]), PeerState::dead) << order[j] << " by " << own->rank();
        }
      }
    }
    Peers& last = *peers[static_cast<std::size_t>(order.back())];
    Peers& other = *peers[static_cast<std::size_t>(order[order.size() - 2])];
    last.send_note(other.rank(), "topic", "text");
    EXPECT_EQ(next_note(other, last.rank()), "text");
    last.report({Failure::Kind::peer, 0, 0, "at the end"});
    EXPECT_TRUE(wait_until([&] { return other.failure().has_value(); }));
  }
}

// The departure arrives over other ranks before the notes arrive over their own connection.
TEST(Control, NotesOfARankArriveBeforeItsDeparture) {
  for (int round = 0; round < 5; ++round) {
    auto peers = start_job(blocks(8, 2));
    const std::string text(40'000, 'x');
    for (int r = 1; r < 8; ++r) {
      for (int i = 0; i < 20; ++i) peers[0]->send_note(r, "topic", text);
    }
    std::thread leaving([&] { peers[0].reset(); });
    for (int r = 1; r < 8; ++r) {
      auto& own = *peers[static_cast<std::size_t>(r)];
      EXPECT_TRUE(wait_until([&] { return own.state(0) == PeerState::left; }));
      for (int i = 0; i < 20; ++i) EXPECT_EQ(own.take_note(0, "topic"), text) << r;
    }
    leaving.join();
  }
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

// All others send a note to a rank, most over a new connection, while that rank leaves.
TEST(Control, ReportsARankThatLeavesWhileItIsDialedAsLeft) {
  const std::size_t before = open_files();
  for (int round = 0; round < 10; ++round) {
    auto peers = start_job(blocks(16, 2));
    constexpr int kLeaving = 3;
    std::vector<std::thread> threads;
    for (auto& own : peers) {
      threads.emplace_back([&own, round] {
        if (own->rank() != kLeaving) return own->send_note(kLeaving, "topic", "text");
        std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
        own.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& own : peers) {
      if (!own) continue;
      EXPECT_TRUE(wait_until([&] { return own->state(kLeaving) != PeerState::alive; }));
      for (int r = 0; r < own->size(); ++r) {
        EXPECT_EQ(own->state(r), r == kLeaving ? PeerState::left : PeerState::alive);
      }
    }
  }
  EXPECT_EQ(open_files(), before);
}

TEST(Control, UnreachableRanksAreDeadOnlyIfTheyAreWatched) {
  Membership members(0, 16);
  members.connection_to(3);
  members.connection_to(5);
  EXPECT_EQ(members.take_dials(), (std::vector<int>{3, 5}));
  members.unreachable(3);
  members.unreachable(5);
  EXPECT_EQ(members.connection_to(3), nullptr);
  EXPECT_TRUE(members.watch(5));
  EXPECT_TRUE(wait_until([&] {
    members.apply_due();
    return members.state(5) == PeerState::dead;
  }));
  EXPECT_EQ(members.state(3), PeerState::alive);
}

TEST(Control, NewConnectionsStartWithAllFacts) {
  Membership one(0, 10'000), other(9'000, 10'000);
  Link first(1), link(2);
  std::string facts;
  for (int r = 1; r < 9'000; ++r) facts += (r % 2 == 0 ? "L" : "D") + std::to_string(r) + " ";
  one.take_facts(1, first, facts);
  EXPECT_TRUE(first.has_ended);
  EXPECT_TRUE(one.unsent_facts(first).empty()) << "they came from there";
  const auto texts = one.unsent_facts(link);
  EXPECT_EQ(texts.size(), 3u);
  for (const std::string& text : texts) {
    EXPECT_LT(text.size(), kLongestText);
    other.take_facts(0, link, text);
  }
  EXPECT_TRUE(one.unsent_facts(link).empty());
  other.apply_due();
  for (int r = 1; r < 9'000; ++r) {
    ASSERT_EQ(other.state(r), r % 2 == 0 ? PeerState::left : PeerState::dead);
  }
  EXPECT_EQ(other.state(9'500), PeerState::alive);
  for (const char* text : {"", "L", "D-1 ", "L10000 ", "x", "D99999999999 ", "L 5", "x9600 "}) {
    other.take_facts(0, link, text);
  }
  EXPECT_TRUE(other.apply_due().empty());
}

}  // namespace
}  // namespace tessera::comm
