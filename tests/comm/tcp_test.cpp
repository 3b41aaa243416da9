// Every collective over notes against the oracle, with ranks as threads; tests/comm/two_hosts.sh
// runs the same backend between network namespaces.

#include <gtest/gtest.h>

#include <thread>

#include "tessera/comm/local_peers.h"
#include "tessera/comm/tcp/backend.h"
#include "tessera/core/errors.h"
#include "tests/comm/oracle.h"
#include "tests/text.h"

namespace tessera::comm {
namespace {

using testing::Bytes;
using testing::expected;
using testing::in_count;
using testing::make_input;
using testing::out_count;

void run_tcp(int ranks, const std::function<void(Backend&)>& body) {
  std::vector<std::shared_ptr<Peers>> peers = make_local_peers(ranks);
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  std::vector<std::thread> threads;
  for (std::shared_ptr<Peers>& own : peers) {
    threads.emplace_back([&body, members, mine = std::move(own)]() mutable {
      const auto group = tcp::make_backend(std::move(mine), members, "world", {});
      body(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_case(Backend& group, Op op, DType dtype, ReduceOp reduce, std::size_t count, int root) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < group.size(); ++r) {
    inputs.push_back(make_input(dtype, in_count(op, count, group.size(), r), r));
  }
  Bytes own = inputs[static_cast<std::size_t>(group.rank())];
  const Bytes before(out_count(op, count, group.size(), group.rank()) * size_of(dtype),
                     std::byte{0x5a});
  Bytes out = before;
  const Collective call{op,         dtype, reduce, Traffic::model, own.data(),
                        out.data(), count, root,   "case"};
  group.submit(call).wait();
  EXPECT_EQ(out, expected(call, inputs, group.rank(), before))
      << describe(call) << " rank " << group.rank() << " of " << group.size();
}

TEST(Tcp, EveryOperationMatchesTheOracle) {
  for (const int ranks : {1, 2, 3}) {
    run_tcp(ranks, [&](Backend& group) {
      const auto n = static_cast<std::size_t>(ranks);
      for (const Op op : {Op::all_reduce, Op::reduce_scatter, Op::all_gather, Op::broadcast,
                          Op::reduce, Op::all_to_all}) {
        // The last is more than one note carries.
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, n + 1, std::size_t{70'001}}) {
          const int root = static_cast<int>(count % n);
          run_case(group, op, DType::f32, ReduceOp::sum, count, root);
          if (is_reduction(op)) run_case(group, op, DType::bf16, ReduceOp::avg, count, root);
        }
      }
    });
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

TEST(Tcp, ADisagreementIsToldToAllAndTheyGoOn) {
  run_tcp(2, [](Backend& group) {
    std::vector<float> values(8, 1.0f);
    const std::size_t count = group.rank() == 0 ? 8 : 4;
    Collective call{Op::all_reduce,
                    DType::f32,
                    ReduceOp::sum,
                    Traffic::model,
                    values.data(),
                    values.data(),
                    count,
                    -1,
                    "x"};
    const Work work = group.submit(call);
    EXPECT_TRUE(contains(error_of([&] { work.wait(); }), "the ranks disagree in call #1"));
    call.count = 8;
    group.submit(call).wait();
    EXPECT_EQ(values, std::vector<float>(8, 2.0f));
  });
}

}  // namespace
}  // namespace tessera::comm
