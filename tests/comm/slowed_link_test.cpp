// Emulated slow links: same results and traffic, and at least the time of the link.

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <vector>

#include "tessera/comm/shm/link.h"
#include "tessera/comm/threads.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

GroupOptions over_a_link(double bandwidth, double latency) {
  GroupOptions options;
  options.link = {bandwidth, latency};
  return options;
}

struct Seen {
  std::vector<std::vector<float>> results;  // by rank
  TrafficCounts sent;                       // of rank 0
  std::chrono::nanoseconds took{};          // duration of all operations on rank 0
};

// Runs all operations on `count` elements.
Seen everything(int ranks, std::size_t count, const GroupOptions& options) {
  Seen seen;
  seen.results.resize(static_cast<std::size_t>(ranks));
  run_threads(
      ranks,
      [&](const std::shared_ptr<Backend>& group) {
        const int rank = group->rank();
        const Shard own = shard_of(count, ranks, rank);
        std::vector<float> in(count), out(count), shard(own.size + 1);
        std::iota(in.begin(), in.end(), static_cast<float>(rank) * 0.37F);
        auto& mine = seen.results[static_cast<std::size_t>(rank)];
        const auto keep = [&](const std::vector<float>& some) {
          mine.insert(mine.end(), some.begin(), some.end());
        };
        const auto call = [&](Op op, const float* from, float* to, int peer = -1) {
          Collective what;
          what.op = op, what.dtype = DType::f32, what.reduce = ReduceOp::avg;
          what.in = from, what.out = to, what.count = count, what.peer = peer, what.label = "x";
          return group->submit(what);
        };
        const TrafficCounts before = group->traffic();
        const auto began = Clock::now();
        call(Op::all_reduce, in.data(), out.data()).wait();
        keep(out);
        call(Op::reduce_scatter, in.data(), shard.data()).wait();
        keep(shard);
        call(Op::all_gather, shard.data(), out.data()).wait();
        keep(out);
        call(Op::broadcast, in.data(), out.data(), ranks - 1).wait();
        keep(out);
        const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
        const Work sent = call(Op::send, in.data(), nullptr, next);
        call(Op::recv, nullptr, out.data(), previous).wait();
        sent.wait();
        keep(out);
        if (rank != 0) return;
        seen.took = Clock::now() - began;
        seen.sent = group->traffic() - before;
      },
      options);
  return seen;
}

TEST(SlowedLink, ChangesNeitherResultsNorTraffic) {
  for (const int ranks : {2, 3}) {
    for (const std::size_t count : {1UL, 1000UL, 70'001UL}) {  // small, staged, in several pieces
      const Seen fast = everything(ranks, count, {});
      const Seen slow = everything(ranks, count, over_a_link(1e9, 1e-4));
      EXPECT_EQ(fast.results, slow.results) << ranks << " ranks, " << count;
      EXPECT_EQ(fast.sent.sent_bytes, slow.sent.sent_bytes);
      EXPECT_EQ(fast.sent.calls, slow.sent.calls);
    }
  }
}

TEST(SlowedLink, TakesAtLeastTheTimeOfTheLink) {
  for (const int ranks : {2, 4}) {
    const std::size_t count = 40'000;
    const LinkOptions link{20e6, 1e-3};
    const Seen slow = everything(ranks, count, over_a_link(link.bandwidth, link.latency));
    // Bytes and steps of rank 0: all-reduce, reduce-scatter, all-gather, broadcast, send.
    const double steps = 2 * (ranks - 1) + 3 * (ranks - 1) + 1;
    const double least =
        static_cast<double>(slow.sent.sent_bytes) / link.bandwidth + steps * link.latency;
    EXPECT_GE(std::chrono::duration<double>(slow.took).count(), least) << ranks << " ranks";
  }
}

// submit() returns before the call has ended, however long the call takes.
TEST(SlowedLink, DoesNotBlockTheSubmittingThread) {
  run_threads(
      2,
      [](const std::shared_ptr<Backend>& group) {
        float in = 1, out = 0;
        Collective call;
        call.op = Op::all_reduce, call.dtype = DType::f32, call.in = &in, call.out = &out;
        call.count = 1;
        const auto began = Clock::now();
        const Work work = group->submit(call);
        const bool done = work.done();
        // Unless this thread was delayed, the call cannot have ended.
        if (Clock::now() - began < std::chrono::milliseconds(100)) {
          EXPECT_FALSE(done);
        }
        work.wait();
        EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(100));
        EXPECT_EQ(out, 2);
      },
      over_a_link(0, 0.05));
}

TEST(SlowedLink, TakesTheTimeOfARing) {
  Collective call;
  call.dtype = DType::f32, call.count = 1'000'000;
  const LinkOptions link{1e9, 1e-3};
  const auto ms = [&](Op op, int ranks) {
    call.op = op, call.peer = 0;
    return std::chrono::duration<double, std::milli>(shm::link_time(link, call, ranks, 0)).count();
  };
  EXPECT_NEAR(ms(Op::all_reduce, 4), 2 * 3 + 2 * 3 * 1.0, 1e-3);
  EXPECT_NEAR(ms(Op::reduce_scatter, 4), 3 + 3 * 1.0, 1e-3);
  EXPECT_NEAR(ms(Op::all_gather, 2), 1 + 2.0, 1e-3);
  EXPECT_NEAR(ms(Op::send, 2), 1 + 4.0, 1e-3);
  EXPECT_EQ(ms(Op::all_reduce, 1), 0);
}

}  // namespace
}  // namespace tessera::comm
