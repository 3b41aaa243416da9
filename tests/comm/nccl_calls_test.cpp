// Calls of NCCL, tested with a fake NCCL: ranks are threads, and host memory stands for GPU memory.
// Also the order of launches, which needs no GPU either.

#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "tessera/comm/local_peers.h"
#include "tessera/comm/nccl/enqueue.h"
#include "tessera/comm/nccl/launch_order.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/comm/oracle.h"

namespace tessera::comm::nccl {
namespace {

using comm::testing::Bytes;
using Sizes = std::vector<std::size_t>;

// Fake NCCL that supports sums of floats. The operations of one ncclGroup run together when all
// ranks have ended theirs: all ranks read, then all write.
struct Pretended {
  struct Task {
    Op op;
    const float* in;
    float* out;
    std::size_t count;
    int peer;
  };
  explicit Pretended(int size) : ranks(size), tasks(static_cast<std::size_t>(size)), all(size) {}

  const int ranks;
  std::vector<std::vector<Task>> tasks;  // of each rank, in the current group
  std::barrier<> all;
  std::mutex mutex;
  int rounds = 0, calls = 0;

  void run(int rank, std::vector<Task> own) {
    {
      const std::lock_guard lock(mutex);
      calls += static_cast<int>(own.size());
      rounds += rank == 0;
    }
    tasks[static_cast<std::size_t>(rank)] = own;
    all.arrive_and_wait();
    std::vector<std::vector<float>> results;
    std::map<int, std::size_t> received;
    for (std::size_t i = 0; i < own.size(); ++i) results.push_back(result(rank, i, received));
    all.arrive_and_wait();
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (results[i].empty()) continue;
      std::memcpy(own[i].out, results[i].data(), results[i].size() * sizeof(float));
    }
    all.arrive_and_wait();
  }

  std::vector<float> result(int rank, std::size_t i, std::map<int, std::size_t>& received) const {
    const auto of = [&](int r) -> const std::vector<Task>& {
      return tasks[static_cast<std::size_t>(r)];
    };
    const Task& task = of(rank)[i];
    if (task.op == Op::send) return {};
    if (task.op == Op::recv) {
      std::size_t skip = received[task.peer]++;
      for (const Task& other : of(task.peer)) {
        if (other.op != Op::send || other.peer != rank || skip-- > 0) continue;
        EXPECT_EQ(other.count, task.count);
        return {other.in, other.in + task.count};
      }
      ADD_FAILURE() << "rank " << rank << " receives a message that no rank sends";
      return std::vector<float>(task.count);
    }
    std::vector<float> sum;
    for (int r = 0; r < ranks; ++r) {
      const Task& other = of(r).at(i);
      EXPECT_EQ(other.op, task.op);
      EXPECT_EQ(other.count, task.count);
      if (task.op == Op::all_gather) {
        sum.insert(sum.end(), other.in, other.in + task.count);
        continue;
      }
      const bool scatter = task.op == Op::reduce_scatter;
      const float* from =
          other.in + (scatter ? static_cast<std::size_t>(rank) * task.count : std::size_t{0});
      sum.resize(task.count);
      for (std::size_t k = 0; k < task.count; ++k) sum[k] += from[k];
    }
    return sum;
  }
};

struct Caller {
  Pretended* nccl = nullptr;
  int rank = 0;
  int depth = 0;
  std::vector<Pretended::Task> group;
};
thread_local Caller caller;

Result put(Op op, const void* in, void* out, std::size_t count, int peer = -1) {
  caller.group.push_back(
      {op, static_cast<const float*>(in), static_cast<float*>(out), count, peer});
  if (caller.depth == 0) caller.nccl->run(caller.rank, std::exchange(caller.group, {}));
  return Result::success;
}

Api pretended_api() {
  Api api{};
  api.all_reduce = [](const void* in, void* out, std::size_t n, Type, Combine, Comm, Stream) {
    return put(Op::all_reduce, in, out, n);
  };
  api.reduce_scatter = [](const void* in, void* out, std::size_t n, Type, Combine, Comm, Stream) {
    return put(Op::reduce_scatter, in, out, n);
  };
  api.all_gather = [](const void* in, void* out, std::size_t n, Type, Comm, Stream) {
    return put(Op::all_gather, in, out, n);
  };
  api.send = [](const void* in, std::size_t n, Type, int peer, Comm, Stream) {
    return put(Op::send, in, nullptr, n, peer);
  };
  api.recv = [](void* out, std::size_t n, Type, int peer, Comm, Stream) {
    return put(Op::recv, nullptr, out, n, peer);
  };
  api.group_start = [] {
    ++caller.depth;
    return Result::success;
  };
  api.group_end = [] {
    if (--caller.depth == 0) caller.nccl->run(caller.rank, std::exchange(caller.group, {}));
    return Result::success;
  };
  return api;
}

// Results of every rank: the shards of reduce_scatter, then the whole of all_gather.
struct Outcome {
  std::vector<std::vector<float>> buffers;  // by rank
  int rounds = 0, calls = 0;
};

Outcome run_parts(int ranks, const Sizes& sizes, bool in_place, bool deterministic, bool one_by_one,
                  Op op) {
  Pretended nccl(ranks);
  const Api api = pretended_api();
  Outcome outcome;
  outcome.buffers.resize(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      caller = {&nccl, r, 0, {}};
      Collective call;
      call.op = op;
      call.dtype = DType::f32;
      call.parts = std::make_shared<Sizes>(sizes);
      for (const std::size_t size : sizes) call.count += size;
      std::vector<float> large(call.count), small(own_count(call, ranks, r), -1);
      for (std::size_t i = 0; i < large.size(); ++i) {
        large[i] = static_cast<float>((i * 7 + 3) % 23 + 100 * static_cast<std::size_t>(r));
      }
      for (std::size_t i = 0; i < small.size(); ++i) {
        small[i] = static_cast<float>(i % 31 + 1000 * static_cast<std::size_t>(r));
      }
      const bool gather = op == Op::all_gather;
      call.in = gather && !in_place ? small.data() : large.data();
      call.out = gather || in_place ? large.data() : small.data();
      TrafficMeter meter;
      const Place place{api, nullptr, c10::Device(c10::kCPU), nullptr, r, ranks, deterministic};
      if (one_by_one) {
        for_each_part(call, ranks, r, [&](const Collective& part) { enqueue(place, part, meter); });
      } else {
        enqueue(place, call, meter);
      }
      std::vector<float>& result = outcome.buffers[static_cast<std::size_t>(r)];
      result = large;
      result.insert(result.end(), small.begin(), small.end());
    });
  }
  for (std::thread& thread : threads) thread.join();
  outcome.rounds = nccl.rounds;
  outcome.calls = nccl.calls;
  return outcome;
}

TEST(NcclParts, RunAsOneNcclGroupAndMatchSeparateCalls) {
  const std::vector<Sizes> cases = {{12}, {12, 24, 36, 12}, {5, 0, 7, 64}, {12, 1, 24}, {1, 2, 3}};
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Sizes& sizes : cases) {
      bool uneven = false;
      for (const std::size_t size : sizes) {
        uneven = uneven || size % static_cast<std::size_t>(ranks) != 0;
      }
      for (const Op op : {Op::reduce_scatter, Op::all_gather}) {
        for (const bool in_place : {false, true}) {
          for (const bool deterministic : {false, true}) {
            SCOPED_TRACE(::testing::Message()
                         << name(op) << " of " << ::testing::PrintToString(sizes) << " over "
                         << ranks << (in_place ? " in place" : "")
                         << (deterministic ? " deterministic" : ""));
            const Outcome together = run_parts(ranks, sizes, in_place, deterministic, false, op);
            const Outcome apart = run_parts(ranks, sizes, in_place, deterministic, true, op);
            EXPECT_EQ(together.buffers, apart.buffers);
            EXPECT_EQ(together.calls, apart.calls);
            // One ncclGroup of collectives, and one of exchanges if there are any.
            const bool exchanges =
                ranks > 1 && (uneven || (deterministic && op == Op::reduce_scatter));
            EXPECT_LE(together.rounds, 1 + (exchanges ? 1 : 0));
            EXPECT_GE(together.rounds, 1);
          }
        }
      }
    }
  }
}

// Tasks added while one waits run after it, in order. When the queue is empty, the caller runs its
// own tasks again.
TEST(NcclLaunchOrder, FollowsTheOrderOfTheCalls) {
  LaunchOrder order;
  std::mutex mutex;
  std::condition_variable opened;
  bool open = false;
  std::vector<std::pair<int, std::thread::id>> ran;
  const auto note = [&](int which) {
    const std::lock_guard lock(mutex);
    ran.emplace_back(which, std::this_thread::get_id());
  };
  order.put([&] { note(0); }, LaunchOrder::How::now);
  order.put(
      [&] {
        std::unique_lock lock(mutex);
        opened.wait(lock, [&] { return open; });
        ran.emplace_back(1, std::this_thread::get_id());
      },
      LaunchOrder::How::on_thread);
  for (int i = 2; i < 50; ++i) order.put([&note, i] { note(i); }, LaunchOrder::How::now);
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(ran.size(), 1u);
    open = true;
    opened.notify_all();
  }
  EXPECT_TRUE(order.wait_until_empty([] { return true; }));
  order.put([&] { note(50); }, LaunchOrder::How::now);
  ASSERT_EQ(ran.size(), 51u);
  const std::thread::id here = std::this_thread::get_id();
  for (int i = 0; i <= 50; ++i) {
    EXPECT_EQ(ran[static_cast<std::size_t>(i)].first, i);
    EXPECT_EQ(ran[static_cast<std::size_t>(i)].second == here, i == 0 || i == 50) << i;
  }
}

// New calls of overlapping groups, each on its own thread, like messages and collectives. A call
// ends when all its ranks are in it at the same time, and a rank is in one call at a time.
TEST(NcclLaunchTurn, NewCallsOfManyGroupsDoNotDeadlock) {
  constexpr int kRanks = 5, kCalls = 24;
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    const auto peers = make_local_peers(kRanks);
    std::array<LaunchTurn, kRanks> turns;
    std::array<std::atomic<int>, kRanks> inside{};
    std::deque<std::barrier<>> meetings;
    std::vector<std::thread> threads;
    for (int c = 0; c < kCalls; ++c) {
      std::vector<int> members;
      while (members.size() < 2) {
        members.clear();
        for (int r = 0; r < kRanks; ++r) {
          if (random() % 2 == 0) members.push_back(r);
        }
      }
      std::shuffle(members.begin(), members.end(), random);
      std::barrier<>& all = meetings.emplace_back(static_cast<std::ptrdiff_t>(members.size()));
      const LaunchTurn::Call call{members, str("call ", c)};
      for (const int rank : members) {
        threads.emplace_back([&, rank, call] {
          const auto r = static_cast<std::size_t>(rank);
          const LaunchTurn::Lock lock = turns[r].take_in_order(
              *peers[r], call, std::chrono::seconds(60), [] { return true; });
          EXPECT_EQ(++inside[r], 1);
          all.arrive_and_wait();
          --inside[r];
        });
      }
      threads.emplace_back([&, r = random() % kRanks] {  // a known call needs no other rank
        const LaunchTurn::Lock lock = turns[r].take([] { return true; });
        EXPECT_EQ(++inside[r], 1);
        --inside[r];
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(NcclLaunchTurn, NamesARankThatDoesNotTakeItsTurn) {
  const auto peers = make_local_peers(3);
  LaunchTurn turn;
  try {
    turn.take_in_order(*peers[2], {{0, 1, 2}, "call"}, std::chrono::milliseconds(1),
                       [] { return true; });
    FAIL() << "no error";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank(), 1);
  }
  EXPECT_FALSE(turn.take_in_order(*peers[2], {{1, 2}, "call"}, std::chrono::seconds(60),
                                  [] { return false; }));
  const LaunchTurn::Lock held = turn.take([] { return true; });
  EXPECT_FALSE(turn.take([] { return false; }));
}

TEST(NcclLaunchOrder, StopsWaitingWhenTheCallbackReturnsFalse) {
  LaunchOrder order;
  std::mutex mutex;
  mutex.lock();
  order.put([&] { const std::lock_guard lock(mutex); }, LaunchOrder::How::on_thread);
  EXPECT_FALSE(order.wait_until_empty([] { return false; }));
  mutex.unlock();
  EXPECT_TRUE(order.wait_until_empty([] { return true; }));
}

}  // namespace
}  // namespace tessera::comm::nccl
