// all_to_all with unequal counts over every backend for host memory, with ranks as threads.

#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <numeric>
#include <thread>

#include "tessera/comm/call_log.h"
#include "tessera/comm/count_matrix.h"
#include "tessera/comm/dry/backend.h"
#include "tessera/comm/hierarchical/backend.h"
#include "tessera/comm/local_peers.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/comm/cases.h"
#include "tests/comm/pretended_hosts.h"
#include "tests/text.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;

using testing::Bytes;
using testing::counts_of;
using testing::CountTable;
using testing::exchange;
using testing::ExchangeCase;
using testing::kTypes;
using testing::random_counts;
using testing::run_exchange;

// A backend and its ranks. `per_host` matters for two-level only.
struct Setup {
  std::string kind;
  int ranks = 1;
  int per_host = 1;

  std::shared_ptr<Backend> make(std::shared_ptr<Peers> peers, GroupOptions options) const {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    if (kind == "shm") return shm::make_backend(std::move(peers), all, "world", options);
    if (kind == "tcp") return tcp::make_backend(std::move(peers), all, "world", options);
    return hierarchical::make_backend(testing::pretend_hosts(peers, per_host), tcp::make_backend,
                                      all, "world", options);
  }
};

void over(const Setup& setup, const std::function<void(Backend&)>& body,
          GroupOptions options = {}) {
  std::vector<std::thread> threads;
  for (std::shared_ptr<Peers>& own : make_local_peers(setup.ranks)) {
    threads.emplace_back([&, peers = std::move(own)]() mutable {
      const std::shared_ptr<Backend> group = setup.make(std::move(peers), options);
      ASSERT_EQ(group->kind(), setup.kind);
      body(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class UnequalCounts : public ::testing::TestWithParam<Setup> {
 protected:
  static int ranks() { return GetParam().ranks; }
  static void run(const std::function<void(Backend&)>& body, GroupOptions options = {}) {
    over(GetParam(), body, options);
  }
  // Counts of 0 except for these: {from, to, count}.
  static CountTable only(const std::vector<std::array<std::size_t, 3>>& counts) {
    CountTable table(static_cast<std::size_t>(ranks()),
                     std::vector<std::size_t>(static_cast<std::size_t>(ranks())));
    for (const auto& [from, to, count] : counts) table.at(from).at(to) = count;
    return table;
  }
};

const std::vector<Setup> kSetups = {
    {"shm", 1},          {"shm", 2},          {"shm", 3},         {"shm", 4}, {"shm", 5},
    {"shm", 8},          {"tcp", 1},          {"tcp", 2},         {"tcp", 3}, {"tcp", 5},
    {"two-level", 4, 2}, {"two-level", 6, 3}, {"two-level", 8, 2}};

std::string name_of(const ::testing::TestParamInfo<Setup>& info) {
  const std::string kind = info.param.kind == "two-level" ? "TwoLevel" : info.param.kind;
  return str(kind, info.param.ranks, "by", info.param.per_host);
}
INSTANTIATE_TEST_SUITE_P(Exchange, UnequalCounts, ::testing::ValuesIn(kSetups), name_of);

// Setups with at least two ranks, for errors.
class UnequalCountsOfMany : public UnequalCounts {};
INSTANTIATE_TEST_SUITE_P(Exchange, UnequalCountsOfMany,
                         ::testing::Values(Setup{"shm", 2}, Setup{"shm", 4}, Setup{"tcp", 2},
                                           Setup{"tcp", 5}, Setup{"two-level", 4, 2}),
                         name_of);

TEST_P(UnequalCounts, RandomCountsOfEveryTypeMatchTheOracle) {
  run([](Backend& group) {
    unsigned seed = 0;
    for (const DType dtype : kTypes) {
      for (const std::size_t most : {1, 7, 300, 20'000}) {
        run_exchange(group, dtype, random_counts(group.size(), most, ++seed));
      }
    }
  });
}

// Some inputs fit a slot of shm and others do not.
TEST_P(UnequalCounts, ManyRandomSizesMatchTheOracle) {
  run([](Backend& group) {
    for (unsigned seed = 100; seed < 140; ++seed) {
      run_exchange(group, DType::bf16, random_counts(group.size(), 1u << (seed % 14), seed));
    }
  });
}

TEST_P(UnequalCounts, EmptyRanksMatchTheOracle) {
  const auto last = static_cast<std::size_t>(ranks() - 1);
  std::vector<CountTable> tables = {only({}), only({{0, last, 5}}), only({{last, 0, 50'000}}),
                                    only({{last, last, 7}}), only({{0, 0, 50'000}})};
  for (const std::size_t most : {10, 30'000}) {
    tables.push_back(random_counts(ranks(), most, 1));
    for (std::size_t& count : tables.back().back()) count = 0;  // the last rank sends nothing
    tables.push_back(random_counts(ranks(), most, 2));
    for (auto& row : tables.back()) row[0] = 0;  // rank 0 receives nothing
  }
  run([&](Backend& group) {
    for (const CountTable& table : tables) run_exchange(group, DType::f32, table);
  });
}

// Larger than every slot, stage and note, and very uneven: one rank gets almost everything.
TEST_P(UnequalCounts, LargeBuffersMatchTheOracle) {
  CountTable skewed = random_counts(ranks(), 1000, 3);
  for (auto& row : skewed) row.back() = 400'001;
  const std::vector<ExchangeCase> cases = {
      {DType::f32, skewed},
      {DType::u8, only({{0, static_cast<std::size_t>(ranks() - 1), 3'000'017}})},
      {DType::bf16, random_counts(ranks(), 300'000, 4)}};
  run([&](Backend& group) {
    for (const ExchangeCase& c : cases) run_exchange(group, c);
  });
}

// Without a wait between the calls; some are completed by the caller's thread, others are queued.
TEST_P(UnequalCounts, CallsInFlightKeepTheirOrder) {
  run([](Backend& group) {
    std::vector<Bytes> in, out, want;
    std::vector<Work> works;
    for (unsigned i = 0; i < 24; ++i) {
      const CountTable table = random_counts(group.size(), i % 3 == 0 ? 40'000 : 40, i);
      std::vector<Bytes> inputs;
      for (int r = 0; r < group.size(); ++r) {
        const auto& row = table[static_cast<std::size_t>(r)];
        inputs.push_back(testing::make_input(DType::i32, part_begin(row, group.size()), r, i));
      }
      const auto self = static_cast<std::size_t>(group.rank());
      want.push_back(testing::expected_exchange(table, inputs, self, 4));
      in.push_back(inputs[self]);
      out.emplace_back(want.back().size());
      works.push_back(group.submit(exchange(DType::i32, in.back().data(), out.back().data(),
                                            counts_of(table, group.rank()))));
    }
    for (const Work& work : works) work.wait();
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(out[i] == want[i]) << "call " << i;
  });
}

TEST_P(UnequalCounts, CountsExactlyTheBytesForOtherRanks) {
  run([](Backend& group) {
    const CountTable table = random_counts(group.size(), 5000, 9);
    run_exchange(group, DType::f64, table);
    const ExchangeCounts own = counts_of(table, group.rank());
    const std::size_t sent =
        part_begin(own.in, group.size()) - own.in[static_cast<std::size_t>(group.rank())];
    EXPECT_EQ(group.traffic().sent_bytes, sent * 8);
    EXPECT_EQ(group.traffic().calls[static_cast<std::size_t>(Op::all_to_all)], 1u);
  });
}

TEST_P(UnequalCounts, RejectsCountsThatDoNotFitTheBuffers) {
  run([](Backend& group) {
    std::vector<float> in(100), out(100);
    const auto error = [&](const std::function<void(ExchangeCounts&)>& change) {
      const auto n = static_cast<std::size_t>(group.size());
      ExchangeCounts counts{std::vector<std::size_t>(n, 2), std::vector<std::size_t>(n, 2)};
      Collective call = exchange(DType::f32, in.data(), out.data(), counts);
      change(counts);
      call.counts = std::make_shared<const ExchangeCounts>(counts);
      return error_of([&] { (void)group.submit(call); });
    };
    const std::size_t n = 2 * static_cast<std::size_t>(group.size());
    const auto self = static_cast<std::size_t>(group.rank());
    std::string text = error([](ExchangeCounts& c) { c.in.push_back(0); });
    EXPECT_TRUE(
        contains(text, str("in_counts has ", group.size() + 1, " counts; must be ", group.size())))
        << text;
    text = error([](ExchangeCounts& c) { c.out.clear(); });
    EXPECT_TRUE(contains(text, "out_counts has 0 counts")) << text;
    text = error([&](ExchangeCounts& c) { c.in[self] = c.out[self] = 1; });
    EXPECT_TRUE(contains(text, str("sum of in_counts is ", n - 1, "; must be ", n))) << text;
    text = error([&](ExchangeCounts& c) { c.in[self] = c.out[self] = 3; });
    EXPECT_TRUE(contains(text, str("greater than the ", n, " elements"))) << text;
    text = error([&](ExchangeCounts& c) { c.in[0] = ~std::size_t{0}; });  // -1: the sum would wrap
    EXPECT_TRUE(contains(text, str("greater than the ", n, " elements"))) << text;
    text = error([&](ExchangeCounts& c) { c.out[self] = 5; });
    EXPECT_TRUE(contains(text, str("in_counts[", self, "] is 2, but out_counts[", self, "] is 5")))
        << text;
    // No other rank has seen these calls.
    run_exchange(group, DType::f32, random_counts(group.size(), 10, 1));
  });
}

TEST(UnequalCountsCheck, RejectsOtherOperationsAndOverlap) {
  std::vector<float> x(100);
  Collective call = exchange(DType::f32, &x[0], &x[50], {{20, 30}, {20, 5}});
  EXPECT_EQ(error_of([&] { check(call, 2, 0); }), "");
  call.out = &x[49];
  EXPECT_TRUE(contains(error_of([&] { check(call, 2, 0); }), "overlap"));
  call.out = nullptr;
  EXPECT_TRUE(contains(error_of([&] { check(call, 2, 0); }), "output buffer is null"));
  call.op = Op::all_reduce;
  EXPECT_TRUE(contains(error_of([&] { check(call, 2, 0); }), "only all_to_all accepts counts"));
}

TEST_P(UnequalCountsOfMany, MismatchedCountsNameBothRanksOnEveryRank) {
  run([](Backend& group) {
    for (const std::size_t most : {10, 50'000}) {
      CountTable table = random_counts(group.size(), most, 5);
      table[0][1] = 7;
      ExchangeCounts counts = counts_of(table, group.rank());
      if (group.rank() == 1) counts.out[0] = 9;
      std::vector<float> in(part_begin(counts.in, group.size())),
          out(part_begin(counts.out, group.size()));
      const std::string text = error_of(
          [&] { group.submit(exchange(DType::f32, in.data(), out.data(), counts)).wait(); });
      EXPECT_TRUE(
          contains(text, "rank 0 sends 7 elements to rank 1, but rank 1 expects 9 from rank 0"))
          << text;
      EXPECT_TRUE(contains(text, "\"exchange\" of group world")) << text;
      run_exchange(group, DType::f32, table);  // the group is still usable
    }
  });
}

TEST_P(UnequalCountsOfMany, OtherDifferencesAreErrorsOnEveryRank) {
  run([](Backend& group) {
    const bool other = group.rank() == 1;
    const auto complaint = [&](const std::function<void(Collective&)>& change) {
      const CountTable table = random_counts(group.size(), 3000, 6);
      std::vector<float> in(50'000), out(50'000);
      Collective call = exchange(DType::f32, in.data(), out.data(), counts_of(table, group.rank()));
      if (other) change(call);
      const std::string text = error_of([&] { group.submit(call).wait(); });
      EXPECT_TRUE(contains(text, "the ranks disagree")) << text;
      EXPECT_TRUE(contains(text, "f32, unequal counts, \"exchange\"")) << text;
      run_exchange(group, DType::f32, table);
      return text;
    };
    EXPECT_TRUE(contains(complaint([](Collective& c) { c.label = "other"; }), "\"other\""));
    EXPECT_TRUE(contains(complaint([](Collective& c) { c.dtype = DType::i32; }), "i32"));
    const std::string text = complaint([](Collective& c) { c.counts = nullptr; });
    EXPECT_TRUE(contains(text, "f32, \"exchange\"")) << text;
    EXPECT_TRUE(contains(complaint([](Collective& c) {
                           c.counts = nullptr;
                           c.op = Op::barrier;
                         }),
                         "barrier("));
  });
}

TEST_P(UnequalCountsOfMany, ARankThatLeavesIsNamed) {
  for (const std::size_t most : {10, 50'000}) {
    run([&](Backend& group) {
      const CountTable table = random_counts(group.size(), most, 7);
      if (group.rank() == 1) return run_exchange(group, DType::f32, table);
      try {
        // A slow rank may hear of the failure in its first call.
        for (int i = 0; i < 2; ++i) run_exchange(group, DType::f32, table);
        ADD_FAILURE() << "no error";
      } catch (const PeerError& error) {
        EXPECT_EQ(error.rank(), 1) << error.what();
        EXPECT_TRUE(contains(error.what(), "all_to_all(")) << error.what();
        EXPECT_TRUE(contains(error.what(), "exchange")) << error.what();
      }
    });
  }
}

TEST(UnequalCountsShm, AMissingRankIsNamedAfterTheTimeout) {
  GroupOptions options;
  options.timeout = 2s;
  std::latch named(2);
  over(
      {"shm", 3},
      [&](Backend& group) {
        const CountTable table = random_counts(3, 50'000, 8);
        if (group.rank() == 0) return named.wait();
        try {
          run_exchange(group, DType::f32, table);
          ADD_FAILURE() << "no error";
        } catch (const PeerError& error) {
          EXPECT_EQ(error.rank(), 0) << error.what();
          EXPECT_TRUE(contains(error.what(), "did not come within 2 s")) << error.what();
        }
        named.count_down();
      },
      options);
}

// Inputs in symmetric memory are read by their receivers: nothing is copied twice.
TEST(UnequalCountsShm, SymmetricInputIsCopiedOnce) {
  for (const int ranks : {2, 3, 4}) {
    over({"shm", ranks}, [](Backend& group) {
      const auto memory = group.symmetric(8 << 20);
      auto* base = static_cast<std::byte*>(memory->part(group.rank())) + 16;
      for (const std::size_t most : {10, 3000, 400'000}) {
        const CountTable table = random_counts(group.size(), most, static_cast<unsigned>(most));
        const auto before = group.traffic();
        run_exchange(group, DType::f32, table, base);
        const std::size_t received =
            4 * part_begin(counts_of(table, group.rank()).out, group.size());
        EXPECT_EQ((group.traffic() - before).copied_bytes, received);
      }
      group.submit({}).wait();  // barrier: no rank may release the memory before all are done
    });
  }
}

TEST(UnequalCountsShm, SomeRanksMayPassOrdinaryOrNoInput) {
  over({"shm", 3}, [](Backend& group) {
    const auto memory = group.symmetric(8 << 20);
    auto* base = static_cast<std::byte*>(memory->part(group.rank())) + 16;
    for (const int ordinary : {0, 1, 2}) {
      const CountTable table = random_counts(3, 200'000, static_cast<unsigned>(ordinary));
      run_exchange(group, DType::i64, table, group.rank() == ordinary ? nullptr : base);
      CountTable fewer = table;  // this rank's input is next to its header
      for (std::size_t& count : fewer[static_cast<std::size_t>(ordinary)]) count %= 100;
      run_exchange(group, DType::i64, fewer, group.rank() == ordinary ? nullptr : base);
    }
    group.submit({}).wait();
  });
}

TEST(UnequalCountsTcp, TooLargeInputIsAnErrorOnEveryRank) {
  over({"tcp", 2}, [](Backend& group) {
    // The input of rank 0, mostly for itself, exceeds the limit of tcp for one call. Never read.
    const std::size_t much = tcp::kMaxBytes - 2;
    Bytes in(group.rank() == 0 ? much + 3 : 0), out(group.rank() == 0 ? much : 3);
    const ExchangeCounts counts =
        group.rank() == 0 ? ExchangeCounts{{much, 3}, {much, 0}} : ExchangeCounts{{0, 0}, {3, 0}};
    const std::string text =
        error_of([&] { group.submit(exchange(DType::u8, in.data(), out.data(), counts)).wait(); });
    EXPECT_TRUE(contains(text, str(tcp::kMaxBytes + 1, " bytes; must be at most"))) << text;
    run_exchange(group, DType::f32, random_counts(2, 10, 1));
  });
}

TEST(UnequalCountsDry, KeepsTheRanksOwnPart) {
  const auto group = dry::make_backend(1, 3, "plan");
  const std::vector<std::int32_t> in = {1, 2, 3, 4, 5, 6};
  std::vector<std::int32_t> out(9, -1);
  group->submit(exchange(DType::i32, in.data(), out.data(), {{1, 2, 3}, {4, 2, 3}})).wait();
  EXPECT_EQ(out, (std::vector<std::int32_t>{-1, -1, -1, -1, 2, 3, -1, -1, -1}));
  EXPECT_EQ(group->traffic().sent_bytes, 4u * 4);
}

TEST(UnequalCountsLog, KeysDoNotDependOnTheCounts) {
  const auto key = [](const Collective& call) {
    return CallLog::key(make_record(call), CallLog::Kind::collectives);
  };
  std::vector<float> x(10);
  const Collective one = exchange(DType::f32, &x[0], &x[5], {{1, 2}, {1, 0}});
  const Collective other = exchange(DType::f32, &x[0], &x[5], {{4, 0}, {4, 1}});
  EXPECT_EQ(key(one), key(other));
  EXPECT_TRUE(same_call(make_record(one), make_record(other)));
  Collective equal = one;
  equal.counts = nullptr;
  EXPECT_NE(key(one), key(equal));
  EXPECT_FALSE(same_call(make_record(one), make_record(equal)));
  EXPECT_NE(key(one), key(exchange(DType::f32, &x[0], &x[5], {{1, 2}, {1, 0}}, "other")));
  EXPECT_NE(key(one), key(exchange(DType::i32, &x[0], &x[5], {{1, 2}, {1, 0}})));
  EXPECT_EQ(describe(make_record(one)), "all_to_all(3 × f32, unequal counts, \"exchange\")");
}

TEST(CountMatrix, NamesTheFirstPairThatDiffersAndCountsTheOthers) {
  CountMatrix counts(3);
  const std::vector<ExchangeCounts> rows = {
      {{1, 2, 3}, {1, 4, 7}}, {{4, 5, 6}, {2, 5, 8}}, {{7, 9, 9}, {3, 0, 9}}};
  for (int r = 0; r < 3; ++r) {
    Bytes row(CountMatrix::row_bytes(3));
    CountMatrix::write_row(rows[static_cast<std::size_t>(r)], row.data());
    counts.read_row(r, row.data());
  }
  const std::string text = error_of([&] { counts.check("rows", 12, "ep"); });
  EXPECT_TRUE(contains(text,
                       "call #12 all_to_all \"rows\" of group ep: rank 1 sends 6 elements to "
                       "rank 2, but rank 2 expects 0 from rank 1"))
      << text;
  EXPECT_TRUE(contains(text, "in_counts[2] of rank 1 must equal out_counts[1] of rank 2")) << text;
  EXPECT_TRUE(contains(text, "other pairs that differ: 1")) << text;
}

}  // namespace
}  // namespace tessera::comm
