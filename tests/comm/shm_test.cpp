// Every collective, type, operation and size over shm against the oracle, with ranks as threads.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "tessera/comm/dry/backend.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tests/comm/oracle.h"

namespace tessera::comm {
namespace {

using testing::Bytes;
using testing::expected;
using testing::in_count;
using testing::make_input;
using testing::out_count;

enum class Memory { ordinary, symmetric };

// Inputs of all ranks, created once and shared by the ranks.
const std::vector<Bytes>& inputs_for(Op op, DType dtype, std::size_t count, int ranks) {
  static std::mutex mutex;
  static std::map<std::tuple<bool, DType, std::size_t, int>, std::vector<Bytes>> made;
  std::lock_guard lock(mutex);
  auto& inputs = made[{op == Op::all_gather, dtype, count, ranks}];
  for (int r = static_cast<int>(inputs.size()); r < ranks; ++r) {
    inputs.push_back(make_input(dtype, in_count(op, count, ranks, r), r));
  }
  return inputs;
}

// Runs one call on every rank and compares the results.
void run_case(Backend& group, Op op, DType dtype, ReduceOp reduce, std::size_t count, int root,
              Memory memory, bool in_place) {
  const int n = group.size(), rank = group.rank();
  const std::size_t size = size_of(dtype);
  const std::vector<Bytes>& inputs = inputs_for(op, dtype, count, n);
  const Bytes& mine = inputs[static_cast<std::size_t>(rank)];
  const std::size_t out_bytes = out_count(op, count, n, rank) * size;
  Bytes before(out_bytes, std::byte{0x5a});

  // One buffer holds input and output, at an offset that is not a multiple of 64.
  const std::size_t most = (count + static_cast<std::size_t>(n)) * size + 64;
  std::shared_ptr<SymmetricMemory> shared;
  Bytes own;
  std::byte* base = nullptr;
  if (memory == Memory::symmetric) {
    shared = group.symmetric(2 * most + 16);
    base = static_cast<std::byte*>(shared->part(rank)) + 16;
  } else {
    own.resize(2 * most + 16);
    base = own.data() + 16;
  }
  std::byte* in = base;
  std::byte* out = base + most;
  const std::size_t begin = shard_of(count, n, rank).begin * size;
  if (in_place) {
    out = op == Op::reduce_scatter ? in + begin : in;
    if (op == Op::all_gather) out = base, in = base + begin;
  }
  if (out_bytes > 0 && (!in_place || op == Op::all_reduce)) {
    std::memcpy(out, before.data(), out_bytes);
  }
  if (!mine.empty()) std::memcpy(in, mine.data(), mine.size());
  if (in_place && op == Op::reduce) before = mine;

  Collective call{op, dtype, reduce, Traffic::model, in, out, count, root, "case"};
  group.submit(call).wait();
  const Bytes want = expected(call, inputs, rank, before);
  ASSERT_EQ(want.size(), out_bytes);
  EXPECT_TRUE(want.empty() || std::memcmp(out, want.data(), out_bytes) == 0)
      << describe(call) << " rank " << rank << " of " << n
      << (memory == Memory::symmetric ? " symmetric" : " ordinary")
      << (in_place ? " in place" : "");
}

const std::vector<DType> kTypes = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                   DType::i32, DType::i64, DType::u8};
const std::vector<ReduceOp> kReductions = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min,
                                           ReduceOp::max};
const std::vector<Op> kOps = {Op::all_reduce, Op::reduce_scatter, Op::all_gather,
                              Op::broadcast,  Op::reduce,         Op::all_to_all};

class EveryRankCount : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Shm, EveryRankCount, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(EveryRankCount, EveryOperationAndTypeMatchesTheOracle) {
  run_threads(GetParam(), [](std::shared_ptr<Backend> group) {
    const auto n = static_cast<std::size_t>(group->size());
    for (const Op op : kOps) {
      for (const DType dtype : kTypes) {
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, n - 1, n + 1, std::size_t{1000}}) {
          for (const ReduceOp reduce : kReductions) {
            if (!is_reduction(op) && reduce != ReduceOp::sum) continue;
            const int root = static_cast<int>(count % n);
            run_case(*group, op, dtype, reduce, count, root, Memory::ordinary, false);
          }
        }
      }
    }
  });
}

TEST_P(EveryRankCount, LargeBuffersMatchTheOracleWithEveryAlgorithm) {
  // Several pieces, the last one short. Sanitizers are slow and need fewer cases.
  std::vector<DType> types = {DType::f32, DType::bf16, DType::u8};
  std::vector<std::size_t> counts = {70'001, 400'003};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  types = {DType::f32};
  counts = {300'001};
  if (GetParam() > 4) GTEST_SKIP() << "8 ranks are too slow under a sanitizer";
#endif
  run_threads(GetParam(), [&](std::shared_ptr<Backend> group) {
    for (const Op op : kOps) {
      for (const DType dtype : types) {
        for (const std::size_t count : counts) {
          for (const Memory memory : {Memory::ordinary, Memory::symmetric}) {
            for (const bool in_place : {false, true}) {
              if (in_place && op == Op::all_to_all) continue;
              run_case(*group, op, dtype, ReduceOp::sum, count, group->size() - 1, memory,
                       in_place);
            }
          }
        }
      }
    }
  });
}

TEST(Shm, MixesSymmetricAndOrdinaryBuffers) {
  run_threads(3, [](std::shared_ptr<Backend> group) {
    const std::size_t count = 100'000;
    auto shared = group->symmetric(count * 4);
    std::vector<float> own(count);
    float* data =
        group->rank() == 1 ? own.data() : static_cast<float*>(shared->part(group->rank()));
    std::fill(data, data + count, static_cast<float>(group->rank() + 1));
    group
        ->submit(
            {Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, data, data, count, -1, ""})
        .wait();
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], 6.0f);
    group->submit({}).wait();  // barrier: no rank may release the memory before all are done
  });
}

TEST(Shm, KeepsTheOrderOfCallsInFlight) {
  run_threads(4, [](std::shared_ptr<Backend> group) {
    // x -> sum -> sum of sums …; any other order, or two at once, gives a different number.
    const std::size_t count = 60'000;
    std::vector<std::int64_t> x(count, group->rank() + 1), small(3, 1);
    std::vector<Work> works;
    for (int i = 0; i < 8; ++i) {
      works.push_back(group->submit({Op::all_reduce, DType::i64, ReduceOp::sum, Traffic::model,
                                     x.data(), x.data(), count, -1, ""}));
      works.push_back(group->submit({Op::all_reduce, DType::i64, ReduceOp::sum, Traffic::model,
                                     small.data(), small.data(), 3, -1, ""}));
    }
    // Waiting for the last one must be enough.
    works.back().wait();
    for (const Work& work : works) EXPECT_TRUE(work.done());
    std::int64_t want = 10;
    for (int i = 1; i < 8; ++i) want *= 4;
    EXPECT_EQ(x.front(), want);
    EXPECT_EQ(x.back(), want);
    EXPECT_EQ(small[0], 65536);
  });
}

TEST(Shm, CompletesOperationsWithoutAWait) {
  std::atomic<int> ended{0};
  run_threads(2, [&](std::shared_ptr<Backend> group) {
    std::vector<float> x(100'000, 1.0f);
    Attachments attachments;
    attachments.after = [&] { ++ended; };
    (void)group->submit({Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x.data(),
                         x.data(), x.size(), -1, ""},
                        attachments);
    while (ended < 2) std::this_thread::yield();
    EXPECT_EQ(x[7], 2.0f);
  });
}

TEST(Shm, SubgroupsRunConcurrently) {
  run_threads(4, [](std::shared_ptr<Backend> world) {
    const int rank = world->rank();
    const std::vector<int> row = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> column = rank % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{3, 1};
    auto rows = world->subgroup(row, rank < 2 ? "row0" : "row1");
    auto columns = world->subgroup(column, rank % 2 == 0 ? "col0" : "col1");
    EXPECT_EQ(columns->rank(), rank < 2 ? 1 : 0);  // the order of the list is the order of ranks
    std::vector<std::int32_t> a(50'000, rank), b(50'000, rank);
    Work wa, wb;
    // Ranks start them in different orders, so groups must not wait for each other.
    const auto start_a = [&] {
      wa = rows->submit({Op::all_reduce, DType::i32, ReduceOp::sum, Traffic::model, a.data(),
                         a.data(), a.size(), -1, ""});
    };
    const auto start_b = [&] {
      wb = columns->submit({Op::all_reduce, DType::i32, ReduceOp::sum, Traffic::model, b.data(),
                            b.data(), b.size(), -1, ""});
    };
    if (rank % 3 == 0) {
      start_a();
      start_b();
    } else {
      start_b();
      start_a();
    }
    wa.wait();
    wb.wait();
    EXPECT_EQ(a[0], rank < 2 ? 1 : 5);
    EXPECT_EQ(b[0], rank % 2 == 0 ? 2 : 4);
  });
}

TEST(Shm, CountsTrafficByTheRingFormula) {
  run_threads(3, [](std::shared_ptr<Backend> group) {
    std::vector<float> in(1000), out(3000);
    const auto start = group->traffic();
    const auto run = [&](Op op, std::size_t count, Traffic traffic = Traffic::model) {
      group->submit({op, DType::f32, ReduceOp::sum, traffic, in.data(), out.data(), count, 0, ""})
          .wait();
    };
    run(Op::all_reduce, 1000);      // 2 · 2 · 334 · 4
    run(Op::reduce_scatter, 1000);  // 2 · 334 · 4
    run(Op::all_gather, 1000);
    run(Op::all_reduce, 3, Traffic::control);
    const auto counts = group->traffic() - start;
    EXPECT_EQ(counts.sent_bytes, 4u * 2 * 334 * 4);
    EXPECT_EQ(counts.control_bytes, 2u * 2 * 1 * 4);
    EXPECT_EQ(counts.calls[static_cast<std::size_t>(Op::all_reduce)], 2u);
    run(Op::broadcast, 1000);
    const auto broadcast = group->traffic() - start;
    EXPECT_EQ(broadcast.sent_bytes - counts.sent_bytes, group->rank() == 2 ? 0u : 4000u);
  });
}

TEST(Dry, CountsTrafficLikeShmAndKeepsItsOwnShard) {
  const int ranks = 64, rank = 5;
  auto group = dry::make_backend(rank, ranks, "plan");
  std::vector<float> in(6400, 2.0f), out(6400, 0.0f);
  group
      ->submit({Op::reduce_scatter, DType::f32, ReduceOp::sum, Traffic::model, in.data(),
                out.data(), 6400, -1, ""})
      .wait();
  EXPECT_EQ(group->traffic().sent_bytes, 63u * 100 * 4);
  EXPECT_EQ(out[99], 2.0f);
  EXPECT_EQ(out[100], 0.0f);
  group
      ->submit({Op::all_gather, DType::f32, ReduceOp::sum, Traffic::model, in.data(), out.data(),
                6400, -1, ""})
      .wait();
  EXPECT_EQ(out[500], 2.0f);
  EXPECT_EQ(out[600], 0.0f);
  auto memory = group->symmetric(100);
  EXPECT_EQ(memory->part_bytes(), 128u);
  std::memset(memory->part(63), 1, 100);
}

}  // namespace
}  // namespace tessera::comm
