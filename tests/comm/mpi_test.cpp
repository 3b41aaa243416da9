// The mpi backend against the oracle, for any number of ranks. Started by mpirun; see mpi.cmake.

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "tessera/comm/shm/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tests/comm/mpi_cases.h"
#include "tests/comm/mpi_world.h"

namespace tessera::comm {
namespace {

using testing::Bytes;
using testing::Case;
using testing::run_case;

const testing::World* world = nullptr;

Collective all_reduce(std::vector<float>& x, std::string label = "") {
  return {Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x.data(), x.data(),
          x.size(),       -1,         label};
}
Collective send(const void* from, std::size_t count, int to, std::string label = "") {
  return {Op::send, DType::i32, ReduceOp::sum, Traffic::model, from, nullptr, count, to, label};
}
Collective recv(void* to, std::size_t count, int from, std::string label = "") {
  return {Op::recv, DType::i32, ReduceOp::sum, Traffic::model, nullptr, to, count, from, label};
}

TEST(Runtime, ExchangesStrings) {
  const std::string own(static_cast<std::size_t>(world->rank()) * 1000, 'x');
  const auto all = world->runtime->all_gather_strings(own);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world->size()));
  for (int r = 0; r < world->size(); ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)],
              std::string(static_cast<std::size_t>(r) * 1000, 'x'));
  }
  const int last = world->size() - 1;
  EXPECT_EQ(world->runtime->broadcast_string(world->rank() == last ? "hello" : "", last), "hello");
  EXPECT_EQ(world->runtime->broadcast_string("", 0), "");
  EXPECT_THROW(world->runtime->broadcast_string("", world->size()), UsageError);
  EXPECT_TRUE(mpi::available());
  EXPECT_NE(mpi::version().find("MPI"), std::string::npos);
}

TEST(Mpi, EveryOperationAndTypeMatchesTheOracle) {
  const auto group = world->group("small");
  const auto n = static_cast<std::size_t>(group->size());
  testing::run_small_matrix(*group, {0, 1, n - 1, n + 1, 1000});
}

TEST(Mpi, LargeBuffersMatchTheOracle) {
  const auto group = world->group("large");
  for (const Op op : testing::kOps) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::u8}) {
      for (const bool in_place : {false, true}) {
        if (in_place && !testing::has_in_place(op)) continue;
        run_case(*group, {op, dtype, ReduceOp::sum, 70'001, group->size() - 1, in_place});
      }
    }
    // Several pieces.
    run_case(*group, {op, DType::f32, ReduceOp::avg, 1'000'003, 0, testing::has_in_place(op)});
  }
}

TEST(Mpi, GivesTheBitsOfShm) {
  const auto group = world->group("bits");
  const auto shm = shm::make_backend(world->peers, world->everybody(), "bits/shm", world->options);
  for (const Op op : testing::kOps) {
    for (const DType dtype : {DType::f16, DType::f64, DType::bf16}) {
      for (const ReduceOp reduce : testing::kReductions) {
        for (const std::size_t count : {std::size_t{513}, std::size_t{100'003}}) {
          if (!is_reduction(op) && reduce != ReduceOp::sum) continue;
          const Case c{op, dtype, reduce, count, 0, false};
          EXPECT_EQ(run_case(*group, c), run_case(*shm, c)) << name(op);
        }
      }
    }
  }
}

TEST(Mpi, SeveralInFlightKeepTheirOrder) {
  const auto group = world->group("order");
  const std::size_t count = 60'000;
  std::vector<std::int64_t> x(count, 1), small(3, 1);
  std::vector<Work> works;
  for (int i = 0; i < 8; ++i) {
    for (auto* data : {&x, &small}) {
      works.push_back(group->submit({Op::all_reduce, DType::i64, ReduceOp::sum, Traffic::model,
                                     data->data(), data->data(), data->size(), -1, ""}));
    }
  }
  works.back().wait();
  std::int64_t want = 1;
  for (int i = 0; i < 8; ++i) want *= group->size();
  for (const Work& work : works) EXPECT_TRUE(work.done());
  EXPECT_EQ(x.front(), want);
  EXPECT_EQ(x.back(), want);
  EXPECT_EQ(small[2], want);
}

TEST(Mpi, OperationsEndWithoutAnybodyWaiting) {
  const auto group = world->group("unattended");
  std::atomic<bool> ended{false};
  std::vector<float> x(100'000, 1.0f);
  Attachments attachments;
  attachments.after = [&] { ended = true; };
  group->submit(all_reduce(x), attachments);
  while (!ended) std::this_thread::yield();
  EXPECT_EQ(x[7], static_cast<float>(group->size()));
}

TEST(Mpi, SubgroupsWorkSideBySide) {
  if (world->size() != 4) GTEST_SKIP() << "for 4 ranks";
  const auto group = world->group("parent");
  const int rank = group->rank();
  const std::vector<int> row = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  const std::vector<int> column = rank % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{3, 1};
  // Created and used at the same time by different threads, in different orders.
  std::shared_ptr<Backend> rows, columns;
  const auto use = [&](std::shared_ptr<Backend>& made, const std::vector<int>& members,
                       const std::string& name, std::int32_t want) {
    made = group->subgroup(members, name);
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
}

// By several threads of each rank at once, on each in another order: those of one must not get what
// is for another.
TEST(Mpi, GroupsOfTheSameRanksAreMadeAtOnceAndStayApart) {
  if (world->size() == 1) GTEST_SKIP() << "for 2 ranks or more";
  constexpr int kThreads = 6, kGroups = 8;
  std::array<std::vector<std::shared_ptr<Backend>>, kThreads> made;
  const auto in_threads = [&](const auto& body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back(body, (i + world->rank()) % kThreads);
    }
    for (std::thread& thread : threads) thread.join();
  };
  in_threads([&](int thread) {
    for (int i = 0; i < kGroups; ++i) {
      nth(made, thread).push_back(world->group(str("at once ", thread, " ", i)));
    }
  });
  // All of them in flight together.
  in_threads([&](int thread) {
    for (int i = 0; i < kGroups; ++i) {
      std::vector<float> x(5000, static_cast<float>(thread * kGroups + i));
      nth(nth(made, thread), i)->submit(all_reduce(x)).wait();
      const auto want = static_cast<float>(world->size() * (thread * kGroups + i));
      EXPECT_EQ(x.front(), want) << "group " << thread << " " << i;
      EXPECT_EQ(x.back(), want) << "group " << thread << " " << i;
    }
  });
}

TEST(Mpi, MembersWhoDisagreeAreTold) {
  if (world->size() < 3) GTEST_SKIP() << "for 3 ranks or more";
  if (world->rank() > 2) return;
  const std::vector<int> members =
      world->rank() == 1 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
  EXPECT_THROW(mpi::make_backend(world->peers, world->runtime, members, "odd", world->options),
               UsageError);
}

TEST(Mpi, SendsAndReceives) {
  const auto group = world->group("messages");
  const int n = group->size(), rank = group->rank();
  if (n == 1) {
    EXPECT_THROW(group->submit(send(nullptr, 0, 0)), UsageError);
    return;
  }
  // Everybody sends to everybody first and receives then; sizes around what fits behind a header
  // and in a piece of a transfer.
  const std::vector<std::size_t> counts = {0, 1, 4096, 4097, 300'000, 5'000'000, 3};
  std::vector<std::vector<std::int32_t>> out, in;
  std::vector<Work> works;
  for (const bool sending : {true, false}) {
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      for (const std::size_t count : counts) {
        const auto value = static_cast<std::int32_t>(count) + 100 * rank + peer;
        if (sending) {
          out.emplace_back(count, value);
          works.push_back(group->submit(send(out.back().data(), count, peer, "x")));
        } else {
          in.emplace_back(count, -1);
          works.push_back(group->submit(recv(in.back().data(), count, peer, "x")));
        }
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
}

TEST(Mpi, DisagreementIsAnErrorOnEveryRankAndTheGroupGoesOn) {
  if (world->size() == 1) GTEST_SKIP() << "for 2 ranks or more";
  const auto group = world->group("mismatch");
  const int rank = group->rank();
  const auto complaint = [&](const std::function<void(Collective&)>& change) {
    std::vector<float> x(50'000, 1.0f);
    Collective call = all_reduce(x);
    if (rank == 1) change(call);
    std::string text;
    try {
      group->submit(call).wait();
    } catch (const UsageError& error) {
      text = error.what();
    }
    x.assign(50'000, 1.0f);
    group->submit(all_reduce(x)).wait();
    EXPECT_EQ(x[49'999], static_cast<float>(group->size()));
    return text;
  };
  const auto says = [](const std::string& text, const std::vector<std::string>& words) {
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  says(complaint([](Collective& c) { c.count = 49'999; }),
       {"50000 × f32", "rank 1", "49999 × f32"});
  says(complaint([](Collective& c) { c.count = 1; }), {"50000 × f32", "(sum, 1 × f32)", "#3"});
  says(complaint([](Collective& c) { c.op = Op::barrier; }), {"all_reduce(", "barrier("});
  says(complaint([](Collective& c) { c.dtype = DType::i32; }), {"f32", "i32"});
  says(complaint([](Collective& c) { c.reduce = ReduceOp::max; }), {"sum", "max"});
  says(complaint([](Collective& c) { c.label = "other"; }), {"\"other\""});
  // Labels that begin alike, for longer than what a record shows of them.
  std::vector<float> x(50'000, 1.0f);
  const std::string begin(100, 'w');
  EXPECT_THROW(group->submit(all_reduce(x, begin + (rank == 1 ? ".weight" : ".bias"))).wait(),
               UsageError);
  group->submit(all_reduce(x, begin + ".weight")).wait();
}

TEST(Mpi, TrafficIsTheRingFormula) { testing::expect_ring_traffic(*world->group("traffic")); }

TEST(Mpi, HasNoSymmetricMemory) {
  try {
    world->group("symmetric")->symmetric(64);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("two-level"), std::string::npos) << error.what();
  }
}

// More than 2 GiB and 2^31 elements. Bytes that are never touched cost nothing, the others do.
TEST(Mpi, MoreThanTwoGibibytes) {
  if (world->size() != 2) GTEST_SKIP() << "for 2 ranks";
  const auto free =
      static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (world->runtime->broadcast_string(free > 6e9 ? "go" : "", 0).empty()) {
    GTEST_SKIP() << "for 6 GB of free memory";
  }
  const auto group = world->group("huge");
  const std::size_t count = (std::size_t{1} << 31) + 4097;
  void* at = mmap(nullptr, count, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* x = static_cast<std::uint8_t*>(at);
  const auto run = [&](Op op) {
    group->submit({op, DType::u8, ReduceOp::sum, Traffic::model, x, x, count, 0, ""}).wait();
  };
  x[0] = x[count / 2] = x[count - 1] = 1;
  run(Op::all_reduce);
  EXPECT_EQ(x[0] + x[count / 2] + x[count - 1], 6);
  if (group->rank() == 0) x[count - 2] = 9;
  run(Op::broadcast);
  EXPECT_EQ(x[count - 2], 9);
  munmap(at, count);
}

}  // namespace
}  // namespace tessera::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto world = tessera::comm::testing::join_world();
  tessera::comm::world = &world;
  return tessera::comm::testing::run_tests(world.rank());
}
