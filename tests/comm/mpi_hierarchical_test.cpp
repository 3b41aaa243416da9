// The two-level backend, for any number of ranks and hosts. Started by mpirun, see mpi.cmake: with
// --per-host L on one machine, where L ranks each pretend to be on a host of their own; without it
// on real hosts, or those of two_hosts.sh.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "tessera/comm/hierarchical/backend.h"
#include "tessera/comm/hierarchical/layout.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/comm/mpi_cases.h"
#include "tests/comm/mpi_world.h"

namespace tessera::comm {
namespace {

using testing::Bytes;
using testing::Case;
using testing::run_case;

struct Job {
  testing::World world;
  std::shared_ptr<Peers> real_peers;
  int per_host = 0;
  std::string link;  // the network interface between the hosts, if it is ours alone

  int hosts() const { return world.size() / per_host; }
  std::shared_ptr<Backend> group(const std::string& name) const {
    return hierarchical::make_backend(world.peers, world.runtime, world.everybody(), name,
                                      world.options);
  }
};
const Job* job = nullptr;

// What two levels must give: partials of each host in rank order, then hosts in order.
Bytes expected(const Collective& call, const std::vector<Bytes>& inputs, int rank,
               const Bytes& before) {
  const bool narrow = call.dtype == DType::i32 || call.dtype == DType::u8;
  if (!is_reduction(call.op) || (narrow && call.reduce == ReduceOp::avg)) {
    return testing::expected(call, inputs, rank, before);
  }
  const int ranks = static_cast<int>(inputs.size());
  const bool sums = call.reduce == ReduceOp::sum || call.reduce == ReduceOp::avg;
  const DType partial = sums ? accumulator(call.dtype) : call.dtype;
  std::vector<Bytes> partials;
  for (int h = 0; h < job->hosts(); ++h) {
    std::vector<const void*> sources;
    for (int l = 0; l < job->per_host; ++l) {
      sources.push_back(inputs[static_cast<std::size_t>(h * job->per_host + l)].data());
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

Collective all_reduce(std::vector<float>& x, std::string label = "") {
  return {Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x.data(), x.data(),
          x.size(),       -1,         label};
}

TEST(Layout, IsRegularOrNamed) {
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
    EXPECT_NE(text.find("backend mpi"), std::string::npos) << text;
  }
}

TEST(TwoLevel, EveryOperationAndTypeMatchesTheOracle) {
  const auto group = job->group("small");
  EXPECT_EQ(group->kind(), "two-level");
  const auto n = static_cast<std::size_t>(group->size());
  testing::run_small_matrix(*group, {0, 1, n - 1, n + 1, 300}, expected);
  testing::run_small_matrix(*group, {5001}, expected);
}

TEST(TwoLevel, LargeBuffersMatchTheOracle) {
  const auto group = job->group("large");
  for (const Op op : testing::kOps) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool in_place : {false, true}) {
        if (in_place && !testing::has_in_place(op)) continue;
        run_case(*group, {op, dtype, ReduceOp::sum, 70'001, group->size() - 1, in_place}, expected);
      }
    }
    // Several pieces of 4 MiB.
    run_case(*group, {op, DType::f32, ReduceOp::avg, 3'000'017, 0, testing::has_in_place(op)},
             expected);
  }
}

TEST(TwoLevel, SymmetricBuffersGiveTheSame) {
  const auto group = job->group("symmetric");
  const auto memory = group->symmetric(40 << 20);
  auto* base = static_cast<std::byte*>(memory->part(group->rank()));
  for (const Op op : testing::kOps) {
    for (const bool in_place : {false, true}) {
      if (in_place && !testing::has_in_place(op)) continue;
      run_case(*group, {op, DType::f32, ReduceOp::sum, 2'000'003, 0, in_place}, expected, base);
      run_case(*group, {op, DType::bf16, ReduceOp::avg, 70'001, 0, in_place}, expected, base);
    }
  }
  for (int r = 0; r < group->size(); ++r) {
    if (r / job->per_host == group->rank() / job->per_host) {
      EXPECT_NE(memory->part(r), nullptr);
    } else {
      EXPECT_THROW(memory->part(r), UsageError);
    }
  }
  group->submit({}).wait();
}

// Only shards cross, each in one direction once per phase: counted where they are given to MPI.
TEST(TwoLevel, OnlyShardsCross) {
  const auto group = job->group("crossing");
  const double l = job->per_host, h = job->hosts();
  const std::size_t count = 1'000'000;
  std::vector<float> in(count, 1.0f), out(count);
  const auto crossed = [&](Op op, DType dtype, std::size_t elements) {
    const auto before = job->world.runtime->sent_bytes();
    group
        ->submit({op, dtype, ReduceOp::sum, Traffic::model, in.data(), out.data(), elements, 0, ""})
        .wait();
    return static_cast<double>(job->world.runtime->sent_bytes() - before);
  };
  const double shard = 4.0 * count / l / h * (h - 1);  // of f32, to all other hosts
  const double slack = 200'000;
  EXPECT_LE(crossed(Op::all_reduce, DType::f32, count), 2 * shard + slack);
  EXPECT_LE(crossed(Op::reduce_scatter, DType::f32, count), shard + slack);
  EXPECT_LE(crossed(Op::all_gather, DType::f32, count), shard + slack);
  // bf16: partials of 4 bytes out, rounded results of 2 back.
  EXPECT_LE(crossed(Op::all_reduce, DType::bf16, count), 1.5 * shard + slack);
  EXPECT_LE(crossed(Op::broadcast, DType::f32, count), 4.0 * count / l + slack);
  // A part as much as a flat exchange takes: there every shard of every rank goes out.
  if (h > 1 && l > 1) {
    const double flat = 2 * 4.0 * count * (h * l - l) / (h * l);
    EXPECT_LT(crossed(Op::all_reduce, DType::f32, count), flat * 0.75);
  }
}

// Bytes that this host has sent through a network interface.
double link_bytes(const std::string& link) {
  std::ifstream table("/proc/net/dev");
  for (std::string line; std::getline(table, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.find(link) > colon) continue;
    std::istringstream numbers(line.substr(colon + 1));
    double value = 0;
    for (int field = 0; field < 9; ++field) numbers >> value;  // the first of those sent
    return value;
  }
  ADD_FAILURE() << "no interface " << link;
  return 0;
}

// The same as the wire sees it, beside an all-reduce of one level.
TEST(TwoLevel, TheLinkCarriesOnlyShards) {
  if (job->link.empty()) GTEST_SKIP() << "for two_hosts.sh";
  const auto group = job->group("link");
  const auto flat = job->world.group("link/flat");
  const double l = job->per_host, h = job->hosts();
  const std::size_t count = 4'000'000;
  std::vector<float> in(count, 1.0f), out(count);
  const auto crossed = [&](Backend& backend, Op op) {
    const auto settle = [&] {
      group->submit({}).wait();
      // Acknowledgements may still be under way: until the link is quiet.
      for (double last = -1, seen = link_bytes(job->link); seen != last;) {
        last = seen;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        seen = link_bytes(job->link);
      }
      group->submit({}).wait();
    };
    settle();
    const double before = link_bytes(job->link);
    backend
        .submit(
            {op, DType::f32, ReduceOp::sum, Traffic::model, in.data(), out.data(), count, 0, ""})
        .wait();
    settle();
    return link_bytes(job->link) - before;
  };
  const double shards = 4.0 * count / h * (h - 1);  // of all ranks of a host together
  const auto check = [&](Op op, double want) {
    const double two = crossed(*group, op), one = crossed(*flat, op);
    if (group->rank() == 0) {
      std::printf("%s of %.1f MB: a host sent %.2f MB, formula %.2f MB; over one level %.2f MB\n",
                  name(op), 4e-6 * count, two * 1e-6, want * 1e-6, one * 1e-6);
    }
    EXPECT_GE(two, want * 0.99);
    EXPECT_LE(two, want * 1.2 + 100'000);
    EXPECT_GT(one, two * (1 + (l - 1) * 0.7));
  };
  check(Op::all_reduce, 2 * shards);
  check(Op::reduce_scatter, shards);
  check(Op::all_gather, shards);
}

TEST(TwoLevel, SeveralInFlightKeepTheirOrder) {
  const auto group = job->group("order");
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
}

TEST(TwoLevel, SendsAndReceives) {
  const auto group = job->group("messages");
  const int n = group->size(), rank = group->rank();
  std::vector<std::vector<std::int32_t>> out, in;
  std::vector<Work> works;
  const std::vector<std::size_t> counts = {1, 100'000, 3};
  for (const bool sending : {true, false}) {
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      for (const std::size_t count : counts) {
        auto& data = sending ? out.emplace_back(count, 100 * rank + peer) : in.emplace_back(count);
        works.push_back(group->submit({sending ? Op::send : Op::recv, DType::i32, ReduceOp::sum,
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
}

TEST(TwoLevel, DisagreementIsAnErrorOnEveryRankAndTheGroupGoesOn) {
  const auto group = job->group("mismatch");
  if (group->size() == 1) GTEST_SKIP() << "for 2 ranks or more";
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
        EXPECT_NE(text.find(str("rank ", group->size() - 1, " called")), std::string::npos) << text;
      }
      x.assign(50'000, 1.0f);
      group->submit(all_reduce(x)).wait();
      EXPECT_EQ(x[49'999], static_cast<float>(group->size()));
    }
  }
}

TEST(TwoLevel, SubgroupsTakeTheirOwnWay) {
  if (job->hosts() != 2 || job->per_host != 2) GTEST_SKIP() << "for 2 hosts of 2 ranks";
  const auto group = job->group("parent");
  const int rank = group->rank();
  const bool first_host = rank < 2, first_column = rank % 2 == 0;
  const std::vector<int> here = first_host ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  const std::vector<int> column = first_column ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
  const auto rows = group->subgroup(here, first_host ? "row0" : "row1");
  const auto columns = group->subgroup(column, first_column ? "col0" : "col1");
  const auto again = group->subgroup(std::vector<int>{2, 3, 0, 1}, "again");
  EXPECT_EQ(rows->kind(), "shm");
  EXPECT_EQ(columns->kind(), "mpi");
  EXPECT_EQ(again->kind(), "two-level");
  EXPECT_EQ(again->rank(), (rank + 2) % 4);
  std::vector<float> a(50'000, 1.0f), b(50'000, 1.0f), c(50'000, 1.0f);
  const Work works[] = {rows->submit(all_reduce(a)), columns->submit(all_reduce(b)),
                        again->submit(all_reduce(c))};
  for (const Work& work : works) work.wait();
  EXPECT_EQ(a[7] + b[7] + c[7], 8.0f);
  if (rank == 3) return;
  EXPECT_THROW(group->subgroup(std::vector<int>{0, 1, 2}, "uneven"), UsageError);
}

TEST(TwoLevel, AnUnevenLayoutIsRefusedByEveryRank) {
  if (!job->real_peers || job->world.size() < 3) GTEST_SKIP() << "for 3 pretended ranks or more";
  std::vector<int> host(static_cast<std::size_t>(job->world.size()), 0);
  host.back() = 1;
  const auto uneven = std::make_shared<testing::PretendedHosts>(job->real_peers, host);
  EXPECT_THROW(hierarchical::make_backend(uneven, job->world.runtime, job->world.everybody(), "odd",
                                          job->world.options),
               UsageError);
}

TEST(TwoLevel, TrafficIsTheRingFormula) { testing::expect_ring_traffic(*job->group("traffic")); }

Job make_job(int argc, char** argv) {
  Job made;
  made.world = testing::join_world();
  const int size = made.world.size();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--per-host") made.per_host = std::atoi(argv[i + 1]);
    if (option == "--link") made.link = argv[i + 1];
  }
  if (made.per_host > 0) {
    made.real_peers = made.world.peers;
    made.world.peers = testing::pretend_hosts(made.real_peers, made.per_host);
  } else {
    for (int r = 0; r < size; ++r) made.per_host += made.world.peers->same_host(r) ? 1 : 0;
  }
  return made;
}

}  // namespace
}  // namespace tessera::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto job = tessera::comm::make_job(argc, argv);
  tessera::comm::job = &job;
  return tessera::comm::testing::run_tests(job.world.rank());
}
