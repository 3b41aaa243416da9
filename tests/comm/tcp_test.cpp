// Every collective over tcp against the oracle, with ranks as threads; tests/comm/two_hosts.sh
// runs the same backend between network namespaces.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "tessera/comm/forwarded_peers.h"
#include "tessera/comm/local_peers.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tests/comm/cases.h"
#include "tests/text.h"

namespace tessera::comm {
namespace {

using testing::all_reduce;
using testing::run_case;

using Members = std::vector<int>;

void run_ranks(int ranks, const std::function<void(std::shared_ptr<Peers>, Members)>& body) {
  Members members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  std::vector<std::thread> threads;
  for (std::shared_ptr<Peers>& own : make_local_peers(ranks)) {
    threads.emplace_back(
        [&body, members, mine = std::move(own)]() mutable { body(std::move(mine), members); });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_tcp(int ranks, const std::function<void(Backend&)>& body, GroupOptions options = {}) {
  run_ranks(ranks, [&](std::shared_ptr<Peers> peers, const Members& members) {
    body(*tcp::make_backend(std::move(peers), members, "world", options));
  });
}

TEST(Tcp, EveryOperationAndTypeMatchesTheOracle) {
  for (const int ranks : {1, 2, 3, 5}) {
    run_tcp(ranks, [&](Backend& group) {
      const auto n = static_cast<std::size_t>(ranks);
      testing::run_small_matrix(group, {0, 1, n - 1, n + 1, 1000});
    });
  }
}

TEST(Tcp, LargeBuffersMatchTheOracle) {
  for (const int ranks : {2, 3}) {
    run_tcp(ranks, [](Backend& group) {
      for (const Op op : testing::kOps) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
          for (const bool in_place : {false, true}) {
            if (in_place && !testing::has_in_place(op)) continue;
            run_case(group, {op, dtype, ReduceOp::sum, 70'001, group.size() - 1, in_place});
          }
        }
        // Many notes.
        run_case(group, {op, DType::f32, ReduceOp::avg, 1'000'003, 0, testing::has_in_place(op)});
      }
    });
  }
}

TEST(Tcp, MatchesShmBitwise) {
  run_ranks(3, [](const std::shared_ptr<Peers>& peers, const Members& members) {
    const auto group = tcp::make_backend(peers, members, "bits", {});
    const auto shm = shm::make_backend(peers, members, "bits/shm", {});
    for (const Op op : testing::kOps) {
      for (const DType dtype : {DType::f16, DType::f64, DType::bf16}) {
        for (const ReduceOp reduce : testing::kReductions) {
          for (const std::size_t count : {std::size_t{513}, std::size_t{100'003}}) {
            if (!is_reduction(op) && reduce != ReduceOp::sum) continue;
            const testing::Case c{op, dtype, reduce, count, 0, false};
            EXPECT_EQ(run_case(*group, c), run_case(*shm, c)) << name(op);
          }
        }
      }
    }
  });
}

TEST(Tcp, KeepsTheOrderOfCallsInFlight) {
  run_tcp(3, [](Backend& group) {
    std::vector<std::int64_t> x(60'000, 1), small(3, 1);
    std::vector<Work> works;
    for (int i = 0; i < 8; ++i) {
      for (auto* data : {&x, &small}) {
        works.push_back(group.submit({Op::all_reduce, DType::i64, ReduceOp::sum, Traffic::model,
                                      data->data(), data->data(), data->size(), -1, ""}));
      }
    }
    works.back().wait();
    for (const Work& work : works) EXPECT_TRUE(work.done());
    EXPECT_EQ(x.front(), 6561);  // 3^8
    EXPECT_EQ(x.back(), 6561);
    EXPECT_EQ(small[2], 6561);
  });
}

TEST(Tcp, CompletesOperationsWithoutAWait) {
  run_tcp(2, [](Backend& group) {
    std::atomic<bool> ended{false};
    std::vector<float> x(100'000, 1.0f);
    Attachments attachments;
    attachments.after = [&] { ended = true; };
    (void)group.submit(all_reduce(x), attachments);
    while (!ended) std::this_thread::yield();
    EXPECT_EQ(x[7], 2.0f);
  });
}

TEST(Tcp, SubgroupsRunConcurrently) {
  run_tcp(4, [](Backend& group) {
    const int rank = group.rank();
    const Members row = rank < 2 ? Members{0, 1} : Members{2, 3};
    const Members column = rank % 2 == 0 ? Members{2, 0} : Members{3, 1};
    // Created and used concurrently by different threads, in different orders.
    std::shared_ptr<Backend> rows, columns;
    const auto use = [&](std::shared_ptr<Backend>& made, const Members& members,
                         const std::string& name, std::int32_t want) {
      made = group.subgroup(members, name);
      for (int i = 0; i < 20; ++i) {
        std::vector<std::int32_t> x(20'000, rank);
        made->submit({Op::all_reduce, DType::i32, ReduceOp::sum, Traffic::model, x.data(), x.data(),
                      x.size(), -1, ""})
            .wait();
        ASSERT_EQ(x[0], want);
        ASSERT_EQ(x[19'999], want);
      }
    };
    std::thread other([&] { use(rows, row, rank < 2 ? "row0" : "row1", rank < 2 ? 1 : 5); });
    use(columns, column, rank % 2 == 0 ? "col0" : "col1", rank % 2 == 0 ? 2 : 4);
    other.join();
    EXPECT_EQ(columns->rank(), rank < 2 ? 1 : 0);  // the order of the list is the order of ranks
  });
}

// Several threads of each rank create groups concurrently, in a different order on each rank. A
// group must not receive messages of another.
TEST(Tcp, ConcurrentlyCreatedGroupsOfTheSameRanksDoNotInterfere) {
  run_ranks(3, [](const std::shared_ptr<Peers>& peers, const Members& members) {
    constexpr int kThreads = 4, kGroups = 4;
    std::array<std::vector<std::shared_ptr<Backend>>, kThreads> made;
    const auto in_threads = [&](const auto& body) {
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) threads.emplace_back(body, (i + peers->rank()) % kThreads);
      for (std::thread& thread : threads) thread.join();
    };
    in_threads([&](int thread) {
      for (int i = 0; i < kGroups; ++i) {
        nth(made, thread)
            .push_back(tcp::make_backend(peers, members, str("at once ", thread, " ", i), {}));
      }
    });
    // All calls are in flight at the same time.
    in_threads([&](int thread) {
      for (int i = 0; i < kGroups; ++i) {
        std::vector<float> x(5000, static_cast<float>(thread * kGroups + i));
        nth(nth(made, thread), i)->submit(all_reduce(x)).wait();
        const auto want = static_cast<float>(3 * (thread * kGroups + i));
        EXPECT_EQ(x.front(), want) << "group " << thread << " " << i;
        EXPECT_EQ(x.back(), want) << "group " << thread << " " << i;
      }
    });
  });
}

TEST(Tcp, SendsAndReceives) {
  run_tcp(3, [](Backend& group) {
    const int n = group.size(), rank = group.rank();
    // All ranks send to all others before they receive. One message is many notes.
    const std::vector<std::size_t> counts = {0, 1, 4096, 300'000, 3};
    std::vector<std::vector<std::int32_t>> out, in;
    std::vector<Work> works;
    for (const bool sending : {true, false}) {
      for (int peer = 0; peer < n; ++peer) {
        if (peer == rank) continue;
        for (const std::size_t count : counts) {
          const auto value = static_cast<std::int32_t>(count) + 100 * rank + peer;
          auto& data = sending ? out.emplace_back(count, value) : in.emplace_back(count, -1);
          works.push_back(
              group.submit({sending ? Op::send : Op::recv, DType::i32, ReduceOp::sum,
                            Traffic::model, data.data(), data.data(), count, peer, "x"}));
        }
      }
    }
    for (const Work& work : works) work.wait();
    std::size_t next = 0;
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      for (const std::size_t count : counts) {
        const auto value = static_cast<std::int32_t>(count) + 100 * peer + rank;
        EXPECT_EQ(in[next++], std::vector<std::int32_t>(count, value));
      }
    }
  });
}

TEST(Tcp, MismatchIsAnErrorOnEveryRankAndTheGroupStaysUsable) {
  run_tcp(3, [](Backend& group) {
    const auto complaint = [&](const std::function<void(Collective&)>& change) {
      std::vector<float> x(50'000, 1.0f);
      Collective call = all_reduce(x);
      if (group.rank() == 1) change(call);
      const Work work = group.submit(call);
      const std::string text = error_of([&] { work.wait(); });
      x.assign(50'000, 1.0f);
      group.submit(all_reduce(x)).wait();
      EXPECT_EQ(x[49'999], 3.0f);
      return text;
    };
    const auto expect_contains = [](const std::string& text,
                                    const std::vector<std::string>& words) {
      for (const std::string& word : words) EXPECT_TRUE(contains(text, word)) << text;
    };
    expect_contains(complaint([](Collective& c) { c.count = 49'999; }),
                    {"50000 × f32", "rank 1", "49999 × f32"});
    expect_contains(complaint([](Collective& c) { c.count = 1; }),
                    {"50000 × f32", "(sum, 1 × f32)", "#3"});
    expect_contains(complaint([](Collective& c) { c.op = Op::barrier; }),
                    {"all_reduce(", "barrier("});
    expect_contains(complaint([](Collective& c) { c.dtype = DType::i32; }), {"f32", "i32"});
    expect_contains(complaint([](Collective& c) { c.reduce = ReduceOp::max; }), {"sum", "max"});
    expect_contains(complaint([](Collective& c) { c.label = "other"; }), {"\"other\""});
    // Labels that differ only after the part that fits into a record.
    std::vector<float> x(50'000, 1.0f);
    const std::string begin(100, 'w');
    EXPECT_THROW(
        group.submit(all_reduce(x, begin + (group.rank() == 1 ? ".weight" : ".bias"))).wait(),
        UsageError);
    group.submit(all_reduce(x, begin + ".weight")).wait();
  });
}

TEST(Tcp, CountsTrafficByTheRingFormula) {
  run_tcp(3, [](Backend& group) { testing::expect_ring_traffic(group); });
}

TEST(Tcp, HasNoSymmetricMemory) {
  run_tcp(2, [](Backend& group) {
    EXPECT_TRUE(contains(error_of([&] { group.symmetric(64); }), "backend shm"));
  });
}

// Counts the ranks that are sent notes.
class CountedPeers final : public ForwardedPeers {
 public:
  using ForwardedPeers::ForwardedPeers;
  void send_note(int rank, const std::string& topic, const std::string& bytes) override {
    receivers.insert(rank);
    ForwardedPeers::send_note(rank, topic, bytes);
  }
  std::set<int> receivers;
};

TEST(Tcp, ShortCallsAreSentToFewRanks) {
  constexpr int kRanks = 11;
  std::vector<std::shared_ptr<CountedPeers>> peers;
  std::vector<int> members;
  for (auto& own : make_local_peers(kRanks)) {
    members.push_back(own->rank());
    peers.push_back(std::make_shared<CountedPeers>(std::move(own)));
  }
  std::vector<std::thread> threads;
  for (const auto& own : peers) {
    threads.emplace_back([&] {
      const auto group = tcp::make_backend(own, members, "world", {});
      group->submit({}).wait();
      for (const Op op : {Op::all_reduce, Op::all_gather, Op::broadcast}) {
        run_case(*group, {op, DType::f32, ReduceOp::sum, 1000, 3, false});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : peers) {
    std::set<int> expected_receivers;
    for (const int distance : {1, 2, 4, 8}) {
      expected_receivers.insert((own->rank() + distance) % kRanks);
    }
    EXPECT_EQ(own->receivers, expected_receivers);
  }
}

TEST(Tcp, PartsAreGatheredInPlace) {
  run_tcp(3, [](Backend& group) {
    const std::vector<std::size_t> parts = {7, 0, 1, 12};
    std::vector<std::int32_t> all(20, -1);
    std::size_t begin = 0;
    for (const std::size_t part : parts) {
      const Shard own = shard_of(part, 3, group.rank());
      for (std::size_t i = 0; i < own.size; ++i) {
        const std::size_t at = begin + own.begin + i;
        all[at] = static_cast<std::int32_t>(at);
      }
      begin += part;
    }
    Collective call{Op::all_gather, DType::i32, ReduceOp::sum,
                    Traffic::model, all.data(), all.data(),
                    all.size(),     -1,         "parts"};
    call.parts = std::make_shared<const std::vector<std::size_t>>(parts);
    group.submit(call).wait();
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int32_t>(i));
  });
}

// Rank 3 waits for calls that rank 1 has to pass on, and longer than rank 1 waits for rank 0.
TEST(Tcp, NamesTheMissingRankAndNotOneThatWaitsForIt) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(2);
  std::atomic<int> failed = 0;
  run_tcp(
      5,
      [&](Backend& group) {
        while (group.rank() == 0 && failed < 4)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (group.rank() == 0) return;
        if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
        const Work work = group.submit({});
        try {
          work.wait();
          ADD_FAILURE() << "no exception";
        } catch (const PeerError& error) {
          EXPECT_EQ(error.rank(), 0) << error.what();
        }
        ++failed;
      },
      options);
}

}  // namespace
}  // namespace tessera::comm
