// Errors of ranks that make different calls, leave or are missing. Ranks are threads;
// process_test.cpp tests processes that die.

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;

Collective all_reduce(std::vector<float>& x, std::string label = "") {
  return {Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x.data(), x.data(),
          x.size(),       -1,         label};
}

// Runs `calls(rank)` on three ranks and returns the UsageError that each of them got.
std::vector<std::string> mismatch_errors(
    const std::function<Collective(int rank, std::vector<float>&)>& calls) {
  std::vector<std::string> texts(3);
  run_threads(3, [&](std::shared_ptr<Backend> group) {
    std::vector<float> x(50'000);
    try {
      group->submit(calls(group->rank(), x)).wait();
    } catch (const UsageError& error) {
      texts[static_cast<std::size_t>(group->rank())] = error.what();
    }
    // The group is still usable: all ranks noticed, and none is out of step.
    x.assign(50'000, 1.0f);
    group->submit(all_reduce(x)).wait();
    EXPECT_EQ(x[49'999], 3.0f);
  });
  return texts;
}

void expect_all_contain(const std::vector<std::string>& texts,
                        const std::vector<std::string>& words) {
  for (const std::string& text : texts) {
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

TEST(Mismatch, ReportsDifferentCounts) {
  expect_all_contain(mismatch_errors([](int rank, std::vector<float>& x) {
                       Collective call = all_reduce(x);
                       if (rank == 1) call.count = 49'999;
                       return call;
                     }),
                     {"50000 × f32", "49999 × f32", "rank 1"});
}

TEST(Mismatch, ReportsDifferentOperations) {
  expect_all_contain(mismatch_errors([](int rank, std::vector<float>& x) {
                       Collective call = all_reduce(x);
                       if (rank == 2) call.op = Op::barrier;
                       return call;
                     }),
                     {"all_reduce(", "barrier("});
}

TEST(Mismatch, ReportsDifferentTypeReductionRootOrLabel) {
  expect_all_contain(mismatch_errors([](int rank, std::vector<float>& x) {
                       Collective call = all_reduce(x);
                       if (rank == 0) call.dtype = DType::i32;
                       return call;
                     }),
                     {"f32", "i32"});
  expect_all_contain(mismatch_errors([](int rank, std::vector<float>& x) {
                       Collective call = all_reduce(x);
                       if (rank == 0) call.reduce = ReduceOp::max;
                       return call;
                     }),
                     {"sum", "max"});
  expect_all_contain(mismatch_errors([](int rank, std::vector<float>& x) {
                       Collective call = all_reduce(x);
                       call.op = Op::broadcast;
                       call.peer = rank == 0 ? 1 : 2;
                       return call;
                     }),
                     {"root 1", "root 2"});
  expect_all_contain(mismatch_errors([](int rank, std::vector<float>& x) {
                       return all_reduce(x, rank == 0 ? "layer.0" : "layer.1");
                     }),
                     {"\"layer.0\"", "\"layer.1\""});
}

// A small call against a large one: only one side has put its data next to the header.
TEST(Mismatch, ReportsSmallCallAgainstLargeCall) {
  expect_all_contain(mismatch_errors([](int rank, std::vector<float>& x) {
                       Collective call = all_reduce(x);
                       if (rank == 0) call.count = 1;
                       return call;
                     }),
                     {"(sum, 1 × f32)", "50000 × f32"});
}

// The same elements with other parts: the shards would be at other positions.
TEST(Mismatch, ReportsDifferentParts) {
  for (const Op op : {Op::reduce_scatter, Op::all_gather}) {
    expect_all_contain(mismatch_errors([op](int rank, std::vector<float>& x) {
                         Collective call = all_reduce(x);
                         call.op = op;
                         using Sizes = std::vector<std::size_t>;
                         call.parts = std::make_shared<const Sizes>(
                             rank == 2 ? Sizes{20'000, 30'000} : Sizes{30'000, 20'000});
                         return call;
                       }),
                       {"the ranks disagree", "in parts (#", "rank 2"});
  }
}

TEST(Overlap, IsRejectedUnlessExactlyInPlace) {
  std::vector<float> x(100);
  const auto allowed = [&](Op op, std::size_t in, std::size_t out, int rank, int ranks = 4) {
    // 40 elements over 4 ranks: 10 per rank.
    const Collective call{op, DType::f32, ReduceOp::sum, Traffic::model, &x[in], &x[out], 40,
                          0,  ""};
    try {
      check(call, ranks, rank);
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("overlap"), std::string::npos) << error.what();
      return false;
    }
    return true;
  };
  for (const Op op : {Op::all_reduce, Op::broadcast, Op::reduce}) {
    EXPECT_TRUE(allowed(op, 5, 5, 0));
    EXPECT_TRUE(allowed(op, 0, 40, 0));
    EXPECT_FALSE(allowed(op, 0, 39, 0));
    EXPECT_FALSE(allowed(op, 39, 0, 0));
  }
  EXPECT_TRUE(allowed(Op::reduce_scatter, 0, 20, 2));
  EXPECT_TRUE(allowed(Op::reduce_scatter, 0, 40, 2));
  EXPECT_FALSE(allowed(Op::reduce_scatter, 0, 0, 2));
  EXPECT_FALSE(allowed(Op::reduce_scatter, 0, 35, 2));
  EXPECT_TRUE(allowed(Op::all_gather, 20, 0, 2));
  EXPECT_TRUE(allowed(Op::all_gather, 40, 0, 2));
  EXPECT_FALSE(allowed(Op::all_gather, 0, 0, 2));
  EXPECT_TRUE(allowed(Op::all_to_all, 0, 40, 2));
  EXPECT_FALSE(allowed(Op::all_to_all, 0, 0, 2));
  EXPECT_TRUE(allowed(Op::all_to_all, 0, 0, 0, 1));
}

TEST(Mismatch, ReportsDifferentSizesOfSymmetricMemory) {
  int errors = 0;
  std::mutex mutex;
  run_threads(2, [&](std::shared_ptr<Backend> group) {
    try {
      group->symmetric(group->rank() == 0 ? 64 : 128);
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("128"), std::string::npos) << error.what();
      std::lock_guard lock(mutex);
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

TEST(Failure, NamesARankThatLeaves) {
  std::vector<int> named(4, -1);
  run_threads(4, [&](std::shared_ptr<Backend> group) {
    std::vector<float> x(50'000, 1.0f);
    group->submit(all_reduce(x)).wait();
    if (group->rank() == 2) return;
    try {
      group->submit(all_reduce(x, "gradient")).wait();
    } catch (const PeerError& error) {
      named[static_cast<std::size_t>(group->rank())] = error.rank();
      EXPECT_NE(std::string(error.what()).find("#2 all_reduce"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("gradient"), std::string::npos) << error.what();
    }
  });
  EXPECT_EQ(named, (std::vector<int>{2, 2, -1, 2}));
}

TEST(Failure, ExceptionOnOneRankEndsAllRanks) {
  try {
    run_threads(3, [](std::shared_ptr<Backend> group) {
      std::vector<float> x(50'000, 1.0f);
      if (group->rank() == 1) throw DataError("the file is bad");
      group->submit(all_reduce(x)).wait();
    });
    FAIL() << "no exception";
  } catch (const DataError& error) {  // the cause, not the PeerErrors that follow from it
    EXPECT_STREQ(error.what(), "the file is bad");
  }
}

TEST(Failure, NamesAMissingRankAfterTheTimeout) {
  GroupOptions options;
  options.timeout = 3s;  // longer than a thread waits for a core on a busy machine
  std::vector<std::string> texts(3);
  std::latch named(2);
  run_threads(
      3,
      [&](std::shared_ptr<Backend> group) {
        std::vector<float> x(50'000, 1.0f);
        group->submit(all_reduce(x)).wait();  // all ranks take part
        if (group->rank() == 0) {
          named.wait();
          EXPECT_THROW(group->submit(all_reduce(x)).wait(), PeerError);
          return;
        }
        try {
          group->submit(all_reduce(x, "weights")).wait();
        } catch (const PeerError& error) {
          EXPECT_EQ(error.rank(), 0);
          texts[static_cast<std::size_t>(group->rank())] = error.what();
        }
        named.count_down();
      },
      options);
  for (int rank : {1, 2}) {
    const std::string& text = texts[static_cast<std::size_t>(rank)];
    EXPECT_NE(text.find("rank 0 is alive but did not come within 3 s"), std::string::npos) << text;
    EXPECT_NE(text.find("#2 all_reduce(sum, 50000 × f32, \"weights\")"), std::string::npos) << text;
  }
}

TEST(Failure, ReceiveWithoutASendTimesOut) {
  GroupOptions options;
  options.timeout = 200ms;
  std::latch ended(1);
  run_threads(
      2,
      [&](std::shared_ptr<Backend> group) {
        float x = 0;
        if (group->rank() == 0) {
          try {
            group
                ->submit(
                    {Op::recv, DType::f32, ReduceOp::sum, Traffic::model, nullptr, &x, 1, 1, ""})
                .wait();
            ADD_FAILURE() << "no exception";
          } catch (const PeerError& error) {
            EXPECT_EQ(error.rank(), 1);
            EXPECT_NE(std::string(error.what()).find("did not come within 0.2 s"),
                      std::string::npos)
                << error.what();
          }
          ended.count_down();
        } else {
          ended.wait();
        }
      },
      options);
}

// The other rank neither calls nor leaves, so only the timeout of minutes could end the call.
TEST(Failure, WorkInFlightDoesNotBlockUnwinding) {
  std::latch unwound(1);
  EXPECT_THROW(run_threads(2,
                           [&](std::shared_ptr<Backend> group) {
                             std::vector<float> x(50'000, 1.0f);
                             auto group2 = group->subgroup(std::vector<int>{0, 1}, "second");
                             if (group->rank() == 1) return unwound.wait();
                             try {
                               const auto inner = std::exchange(group2, nullptr);
                               (void)inner->submit(all_reduce(x));  // the other rank never calls it
                               throw DataError("unrelated");
                             } catch (const DataError&) {
                               unwound.count_down();
                               throw;
                             }
                           }),
               DataError);
}

}  // namespace
}  // namespace tessera::comm
