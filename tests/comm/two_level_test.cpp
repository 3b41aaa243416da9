// The two-level backend over tcp, with ranks as threads. Every `per_host` ranks appear to be on a
// host of their own; the tests hosts.* run it between network namespaces.

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include "tessera/comm/hierarchical/backend.h"
#include "tessera/comm/hierarchical/layout.h"
#include "tessera/comm/local_peers.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/comm/cases.h"
#include "tests/comm/pretended_hosts.h"

namespace tessera::comm {
namespace {

using testing::all_reduce;
using testing::Bytes;
using testing::run_case;

// One rank of a job.
struct Job {
  std::shared_ptr<Peers> real_peers;
  std::shared_ptr<testing::PretendedHosts> peers;
  int per_host = 1;

  int rank() const { return peers->rank(); }
  int size() const { return peers->size(); }
  int hosts() const { return size() / per_host; }
  std::shared_ptr<Backend> group(const std::string& name, std::shared_ptr<Peers> over = {}) const {
    std::vector<int> everybody(static_cast<std::size_t>(size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    return hierarchical::make_backend(over ? over : peers, tcp::make_backend, everybody, name, {});
  }
};

void run_job(int ranks, int per_host, const std::function<void(const Job&)>& body) {
  std::vector<std::thread> threads;
  for (std::shared_ptr<Peers>& own : make_local_peers(ranks)) {
    threads.emplace_back([&body, per_host, real = std::move(own)]() mutable {
      auto pretended = testing::pretend_hosts(real, per_host);
      const Job job{std::move(real), std::move(pretended), per_host};
      body(job);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The parameter is the number of ranks and of ranks per host.
class TwoLevel : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  static void run(const std::function<void(const Job&)>& body) {
    run_job(GetParam().first, GetParam().second, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, TwoLevel,
                         ::testing::Values(std::pair(2, 2), std::pair(3, 1), std::pair(4, 2)),
                         [](const auto& one) {
                           return str(one.param.first, "by", one.param.second);
                         });

// Expected results of two levels: partials of each host in rank order, then hosts in order.
Bytes expected_of(const Job& job, const Collective& call, const std::vector<Bytes>& inputs,
                  int rank, const Bytes& before) {
  const bool narrow = call.dtype == DType::i32 || call.dtype == DType::u8;
  if (!is_reduction(call.op) || (narrow && call.reduce == ReduceOp::avg)) {
    return testing::expected(call, inputs, rank, before);
  }
  const int ranks = static_cast<int>(inputs.size());
  const bool sums = call.reduce == ReduceOp::sum || call.reduce == ReduceOp::avg;
  const DType partial = sums ? accumulator(call.dtype) : call.dtype;
  std::vector<Bytes> partials;
  for (int h = 0; h < job.hosts(); ++h) {
    std::vector<const void*> sources;
    for (int l = 0; l < job.per_host; ++l) {
      sources.push_back(inputs[static_cast<std::size_t>(h * job.per_host + l)].data());
    }
    partials.emplace_back(call.count * size_of(partial));
    void* to[] = {partials.back().data()};
    reduce_reference({call.dtype, partial, sums ? ReduceOp::sum : call.reduce, 1}, sources, to,
                     call.count);
  }
  std::vector<const void*> sources;
  for (const Bytes& each : partials) sources.push_back(each.data());
  Bytes all(call.bytes());
  void* to[] = {all.data()};
  reduce_reference({partial, call.dtype, call.reduce, call.reduce == ReduceOp::avg ? ranks : 1},
                   sources, to, call.count);
  if (call.op == Op::reduce) return rank == call.peer ? all : before;
  if (call.op == Op::all_reduce) return all;
  const Shard own = shard_of(call.count, ranks, rank);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(own.begin * size_of(call.dtype));
  return Bytes(first, first + static_cast<std::ptrdiff_t>(own.size * size_of(call.dtype)));
}

testing::Oracle oracle_of(const Job& job) {
  return [&job](const Collective& call, const std::vector<Bytes>& inputs, int rank,
                const Bytes& before) { return expected_of(job, call, inputs, rank, before); };
}

TEST(TwoLevelGroup, DescribesIrregularLayoutsInTheError) {
  EXPECT_TRUE(hierarchical::is_regular({0, 0, 2, 2, 4, 4}));
  EXPECT_TRUE(hierarchical::is_regular({0, 1, 2}));
  EXPECT_TRUE(hierarchical::is_regular({0, 0, 0}));
  EXPECT_FALSE(hierarchical::is_regular({0, 0, 0, 3}));
  EXPECT_FALSE(hierarchical::is_regular({0, 1, 0, 1}));
  EXPECT_FALSE(hierarchical::is_regular({0, 1, 1}));
  EXPECT_FALSE(hierarchical::is_regular({0, 0, 2}));
  try {
    hierarchical::find_layout({0, 0, 0, 3}, "g");
    FAIL() << "no error";
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("ranks 0 1 2 on one host, rank 3 on one host"), std::string::npos) << text;
    EXPECT_NE(text.find("backend tcp"), std::string::npos) << text;
  }
}

TEST_P(TwoLevel, EveryOperationAndTypeMatchesTheOracle) {
  run([](const Job& job) {
    const auto group = job.group("small");
    EXPECT_EQ(group->kind(), job.hosts() == 1 ? "shm" : job.per_host == 1 ? "tcp" : "two-level");
    const auto n = static_cast<std::size_t>(group->size());
    testing::run_small_matrix(*group, {0, 1, n - 1, n + 1, 300}, oracle_of(job));
    testing::run_small_matrix(*group, {5001}, oracle_of(job));
  });
}

TEST_P(TwoLevel, LargeBuffersMatchTheOracle) {
  run([](const Job& job) {
    const auto group = job.group("large");
    for (const Op op : testing::kOps) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !testing::has_in_place(op)) continue;
          run_case(*group, {op, dtype, ReduceOp::sum, 70'001, group->size() - 1, in_place},
                   oracle_of(job));
        }
      }
      // Several pieces of 4 MiB.
      run_case(*group, {op, DType::f32, ReduceOp::avg, 3'000'017, 0, testing::has_in_place(op)},
               oracle_of(job));
    }
  });
}

TEST(TwoLevelGroup, SymmetricBuffersGiveTheSameResults) {
  run_job(4, 2, [](const Job& job) {
    const auto group = job.group("symmetric");
    const auto memory = group->symmetric(40 << 20);
    auto* base = static_cast<std::byte*>(memory->part(group->rank()));
    for (const Op op : testing::kOps) {
      for (const bool in_place : {false, true}) {
        if (in_place && !testing::has_in_place(op)) continue;
        run_case(*group, {op, DType::f32, ReduceOp::sum, 2'000'003, 0, in_place}, oracle_of(job),
                 base);
        run_case(*group, {op, DType::bf16, ReduceOp::avg, 70'001, 0, in_place}, oracle_of(job),
                 base);
      }
    }
    for (int r = 0; r < group->size(); ++r) {
      if (r / job.per_host == group->rank() / job.per_host) {
        EXPECT_NE(memory->part(r), nullptr);
      } else {
        EXPECT_THROW(memory->part(r), UsageError);
      }
    }
    group->submit({}).wait();
  });
}

// Only shards are sent between hosts, each once per phase and direction. Counted where they are
// passed to tcp.
TEST_P(TwoLevel, SendsOnlyShardsBetweenHosts) {
  run([](const Job& job) {
    const auto group = job.group("crossing");
    const double l = job.per_host, h = job.hosts();
    const std::size_t count = 1'000'000;
    std::vector<float> in(count, 1.0f), out(count);
    const auto crossed = [&](Op op, DType dtype, std::size_t elements) {
      const auto before = job.peers->bytes_to_other_hosts();
      group
          ->submit(
              {op, dtype, ReduceOp::sum, Traffic::model, in.data(), out.data(), elements, 0, ""})
          .wait();
      return static_cast<double>(job.peers->bytes_to_other_hosts() - before);
    };
    const double shard = 4.0 * count / l / h * (h - 1);  // of f32, to all other hosts
    const double slack = 200'000;
    EXPECT_LE(crossed(Op::all_reduce, DType::f32, count), 2 * shard + slack);
    EXPECT_LE(crossed(Op::reduce_scatter, DType::f32, count), shard + slack);
    EXPECT_LE(crossed(Op::all_gather, DType::f32, count), shard + slack);
    // bf16: partials of 4 bytes out, rounded results of 2 back.
    EXPECT_LE(crossed(Op::all_reduce, DType::bf16, count), 1.5 * shard + slack);
    EXPECT_LE(crossed(Op::broadcast, DType::f32, count), 4.0 * count / l * (h - 1) + slack);
    // A fraction of a flat exchange, in which every shard of every rank is sent.
    if (h > 1 && l > 1) {
      const double flat = 2 * 4.0 * count * (h * l - l) / (h * l);
      EXPECT_LT(crossed(Op::all_reduce, DType::f32, count), flat * 0.75);
    }
  });
}

TEST_P(TwoLevel, KeepsTheOrderOfCallsInFlight) {
  run([](const Job& job) {
    const auto group = job.group("order");
    std::vector<std::int64_t> x(60'000, 1), small(3, 1);
    std::vector<Work> works;
    for (int i = 0; i < 6; ++i) {
      for (auto* data : {&x, &small}) {
        works.push_back(group->submit({Op::all_reduce, DType::i64, ReduceOp::sum, Traffic::model,
                                       data->data(), data->data(), data->size(), -1, ""}));
      }
    }
    works.back().wait();
    std::int64_t want = 1;
    for (int i = 0; i < 6; ++i) want *= group->size();
    for (const Work& work : works) EXPECT_TRUE(work.done());
    EXPECT_EQ(x.back(), want);
    EXPECT_EQ(small[2], want);
  });
}

TEST_P(TwoLevel, SendsAndReceives) {
  run([](const Job& job) {
    const auto group = job.group("messages");
    const int n = group->size(), rank = group->rank();
    std::vector<std::vector<std::int32_t>> out, in;
    std::vector<Work> works;
    const std::vector<std::size_t> counts = {1, 100'000, 3};
    for (const bool sending : {true, false}) {
      for (int peer = 0; peer < n; ++peer) {
        if (peer == rank) continue;
        for (const std::size_t count : counts) {
          auto& data =
              sending ? out.emplace_back(count, 100 * rank + peer) : in.emplace_back(count);
          works.push_back(
              group->submit({sending ? Op::send : Op::recv, DType::i32, ReduceOp::sum,
                             Traffic::model, data.data(), data.data(), count, peer, ""}));
        }
      }
    }
    for (const Work& work : works) work.wait();
    std::size_t next = 0;
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      for (const std::size_t count : counts) {
        EXPECT_EQ(in[next++], std::vector<std::int32_t>(count, 100 * peer + rank));
      }
    }
  });
}

TEST_P(TwoLevel, MismatchIsAnErrorOnEveryRankAndTheGroupStaysUsable) {
  run([](const Job& job) {
    const auto group = job.group("mismatch");
    for (const std::size_t count : {std::size_t{50'000}, std::size_t{7}}) {
      for (const bool other_size : {true, false}) {
        std::vector<float> x(50'000, 1.0f);
        Collective call = all_reduce(x, "a");
        call.count = count;
        if (group->rank() == group->size() - 1) {
          if (other_size) {
            call.count = 20'000;
          } else {
            call.label = "b";
          }
        }
        try {
          group->submit(call).wait();
          ADD_FAILURE() << "no error";
        } catch (const UsageError& error) {
          const std::string text = error.what(), own = describe(call);
          EXPECT_NE(text.find(own), std::string::npos) << text;
          EXPECT_NE(text.find(other_size ? "20000 ×" : "\"b\""), std::string::npos) << text;
          EXPECT_NE(text.find(str("rank ", group->size() - 1, " called")), std::string::npos)
              << text;
        }
        x.assign(50'000, 1.0f);
        group->submit(all_reduce(x)).wait();
        EXPECT_EQ(x[49'999], static_cast<float>(group->size()));
      }
    }
  });
}

TEST(TwoLevelGroup, SubgroupsChooseTheirBackend) {
  run_job(4, 2, [](const Job& job) {
    const auto group = job.group("parent");
    const int rank = group->rank();
    const bool first_host = rank < 2, first_column = rank % 2 == 0;
    const std::vector<int> here = first_host ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> column = first_column ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    const auto rows = group->subgroup(here, first_host ? "row0" : "row1");
    const auto columns = group->subgroup(column, first_column ? "col0" : "col1");
    const auto again = group->subgroup(std::vector<int>{2, 3, 0, 1}, "again");
    EXPECT_EQ(rows->kind(), "shm");
    EXPECT_EQ(columns->kind(), "tcp");
    EXPECT_EQ(again->kind(), "two-level");
    EXPECT_EQ(again->rank(), (rank + 2) % 4);
    std::vector<float> a(50'000, 1.0f), b(50'000, 1.0f), c(50'000, 1.0f);
    const Work works[] = {rows->submit(all_reduce(a)), columns->submit(all_reduce(b)),
                          again->submit(all_reduce(c))};
    for (const Work& work : works) work.wait();
    EXPECT_EQ(a[7] + b[7] + c[7], 8.0f);
    if (rank == 3) return;
    EXPECT_THROW(group->subgroup(std::vector<int>{0, 1, 2}, "uneven"), UsageError);
  });
}

TEST(TwoLevelGroup, RejectsAnUnevenLayoutOnEveryRank) {
  run_job(3, 3, [](const Job& job) {
    std::vector<int> host(static_cast<std::size_t>(job.size()), 0);
    host.back() = 1;
    const auto uneven = std::make_shared<testing::PretendedHosts>(job.real_peers, host);
    EXPECT_THROW(job.group("odd", uneven), UsageError);
  });
}

TEST_P(TwoLevel, CountsTrafficByTheRingFormula) {
  run([](const Job& job) { testing::expect_ring_traffic(*job.group("traffic")); });
}

}  // namespace
}  // namespace tessera::comm
