// Groups and meshes of CPU tensors, with ranks as threads.

#include "tessera/comm/group.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tessera/comm/dry/backend.h"
#include "tessera/comm/mesh.h"
#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

void over(int ranks, const std::function<void(Group)>& body) {
  run_threads(ranks, [&](std::shared_ptr<Backend> backend) { body(Group(std::move(backend))); });
}

// Expects tensors to be bitwise equal.
void expect_same(const at::Tensor& got, const at::Tensor& want) {
  EXPECT_TRUE(got.dtype() == want.dtype() && got.sizes() == want.sizes() && at::equal(got, want))
      << "got\n"
      << got << "\nwanted\n"
      << want;
}

// Returns the text of the UsageError that `call` throws, or "".
std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}
#define EXPECT_CONTAINS(text, word) \
  EXPECT_NE((text).find(word), std::string::npos) << "text: " << (text)

// Returns a rank's shard of a buffer ([Note: shards]).
at::Tensor shard(const at::Tensor& whole, const Group& group, int rank) {
  const auto count = static_cast<std::size_t>(whole.numel());
  const Shard part = shard_of(count, group.size(), rank);
  return whole.flatten().narrow(0, static_cast<std::int64_t>(part.begin),
                                static_cast<std::int64_t>(part.size));
}

// Returns the input of rank r: whole numbers, so that sums are exact in every type.
at::Tensor input(std::int64_t count, int rank, at::ScalarType type = at::kFloat) {
  return (at::arange(count, at::kLong).remainder(7) + rank).to(type);
}
at::Tensor sum_of_inputs(std::int64_t count, int ranks, at::ScalarType type = at::kFloat) {
  at::Tensor sum = input(count, 0, at::kLong);
  for (int r = 1; r < ranks; ++r) sum += input(count, r, at::kLong);
  return sum.to(type);
}

TEST(Group, DefaultGroupIsTheIdentity) {
  const Group group;
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.rank(), 0);
  const at::Tensor x = at::randn({5, 3}), before = x.clone();
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max}) {
    group.all_reduce(x, {op, Traffic::model, ""}).wait();
    expect_same(x, before);
  }
  const at::Tensor y = at::zeros_like(x);
  group.all_gather(y, x).wait();
  expect_same(y, x);
  y.zero_();
  group.reduce_scatter(y, x).wait();
  expect_same(y, x);
  y.zero_();
  group.all_to_all(y, x).wait();
  expect_same(y, x);
  group.broadcast(x, 0).wait();
  group.reduce(x, 0).wait();
  expect_same(x, before);
  group.barrier();
  const SymmetricTensor shared = group.symmetric({4});
  expect_same(shared.local(), at::zeros({4}));
  EXPECT_EQ(group.split(3).size(), 1);
  EXPECT_EQ(group.subset({0}, "again").size(), 1);
  EXPECT_THROW(group.send(x, 0), UsageError);
}

class EverySize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Group, EverySize, ::testing::Values(2, 3, 4));

TEST_P(EverySize, ComputesEveryOperation) {
  over(GetParam(), [](const Group& group) {
    const int n = group.size(), rank = group.rank();
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte}) {
      for (const std::int64_t count : {0, 1, n, 101, 20'000}) {
        const at::Tensor x = input(count, rank, type), sum = sum_of_inputs(count, n, type);
        at::Tensor out = at::zeros_like(x);
        group.all_reduce(out, x).wait();
        expect_same(out, sum);
        expect_same(x, input(count, rank, type));
        group.all_reduce(x, {ReduceOp::max, Traffic::model, ""}).wait();
        expect_same(x, input(count, n - 1, type));

        const at::Tensor y = input(count, rank, type);
        out = at::zeros_like(shard(y, group, rank));
        group.reduce_scatter(out, y).wait();
        expect_same(out, shard(sum, group, rank));
        group.reduce_scatter(shard(y, group, rank), y).wait();  // in place
        expect_same(shard(y, group, rank), out);

        at::Tensor whole = at::zeros({count}, type);
        group.all_gather(whole, out).wait();
        expect_same(whole, sum);
        whole.zero_();
        shard(whole, group, rank).copy_(out);
        group.all_gather(whole, shard(whole, group, rank)).wait();  // in place
        expect_same(whole, sum);

        const int root = n - 1;
        at::Tensor z = input(count, rank, type);
        group.broadcast(z, root).wait();
        expect_same(z, input(count, root, type));
        z = input(count, rank, type);
        group.reduce(z, root).wait();
        expect_same(z, rank == root ? sum : input(count, rank, type));

        const at::Tensor mine = shard(x, group, rank);
        out = at::zeros({mine.numel() * n}, type);
        group.all_to_all(out, input(count, rank, type)).wait();
        std::vector<at::Tensor> parts;
        for (int r = 0; r < n; ++r) parts.push_back(shard(input(count, r, type), group, rank));
        expect_same(out, at::cat(parts));

        const int next = (rank + 1) % n, last = (rank + n - 1) % n;
        at::Tensor got = at::zeros({count}, type);
        const Work sent = group.send(input(count, rank, type), next);
        group.recv(got, last).wait();
        sent.wait();
        expect_same(got, input(count, last, type));
      }
    }
    group.barrier();
  });
}

TEST(Group, AcceptsAnyShapeOfTheRightSize) {
  over(2, [](const Group& group) {
    const at::Tensor x = at::full({3, 4, 5}, group.rank() + 1.0);
    group.all_reduce(x).wait();
    expect_same(x, at::full({3, 4, 5}, 3.0));
    const at::Tensor whole = at::zeros({2, 5});  // one row per rank
    group.all_gather(whole, at::full({1, 5}, group.rank() + 1.0)).wait();
    expect_same(whole, at::stack({at::full({5}, 1.0), at::full({5}, 2.0)}));
  });
}

TEST(Group, RejectsWrongTensors) {
  over(2, [](const Group& group) {
    const at::Tensor x = at::zeros({6, 4});
    std::string text = complaint([&] { (void)group.all_reduce(x.t()); });
    EXPECT_CONTAINS(text, "not contiguous");
    EXPECT_CONTAINS(text, "[4, 6]");
    EXPECT_CONTAINS(complaint([&] { (void)group.all_reduce(at::zeros({5}), at::zeros({6})); }),
                    "output has 5 elements; must be 6");
    EXPECT_CONTAINS(complaint([&] { (void)group.reduce_scatter(at::zeros({6}), at::zeros({6})); }),
                    "output has 6 elements; must be 3");
    EXPECT_CONTAINS(complaint([&] { (void)group.all_gather(at::zeros({6}), at::zeros({2})); }),
                    "input has 2 elements; must be 3");
    EXPECT_CONTAINS(complaint([&] { (void)group.all_to_all(at::zeros({2}), at::zeros({6})); }),
                    "output has 2 elements; must be 6");
    text = complaint([&] { (void)group.all_reduce(at::zeros({6}), at::zeros({6}, at::kDouble)); });
    EXPECT_CONTAINS(text, "Float");
    EXPECT_CONTAINS(text, "Double");
    EXPECT_CONTAINS(complaint([&] { (void)group.all_reduce(at::zeros({6}, at::kBool)); }),
                    "not support Bool");
    EXPECT_CONTAINS(complaint([&] { (void)group.all_reduce(at::zeros({6}, at::kComplexFloat)); }),
                    "not support");
    EXPECT_CONTAINS(complaint([&] { (void)group.broadcast(x, 2); }), "no rank 2");
    EXPECT_CONTAINS(complaint([&] { (void)group.send(x, group.rank()); }), "another rank");
    // None of these calls reached the other rank, so the group is in step.
    const at::Tensor y = at::ones({3});
    group.all_reduce(y).wait();
    expect_same(y, at::full({3}, 2.0));
  });
}

TEST(Group, ReportsAllCallsToAllRanksOnAMismatch) {
  over(2, [](const Group& group) {
    const at::Tensor x = at::zeros({group.rank() == 0 ? 5 : 6});
    const std::string text = complaint([&] {
      group.all_reduce(x, {ReduceOp::sum, Traffic::model, "bias"}).wait();
    });
    EXPECT_CONTAINS(text, "5 × f32, \"bias\"");
    EXPECT_CONTAINS(text, "6 × f32, \"bias\"");
  });
}

TEST(Group, KeepsTensorsAliveUntilTheCallEnds) {
  over(2, [](const Group& group) {
    std::vector<Work> works;
    at::Tensor last;
    for (int i = 0; i < 20; ++i) {
      at::Tensor x = at::full({300'000}, 1.0 + i);
      at::Tensor part = x.narrow(0, 0, 200'000);  // a view keeps its storage
      works.push_back(group.all_reduce(part));
      last = i == 19 ? x : at::Tensor();
    }
    for (const Work& work : works) work.wait();
    expect_same(last.narrow(0, 0, 200'000), at::full({200'000}, 40.0));
    expect_same(last.narrow(0, 200'000, 100'000), at::full({100'000}, 20.0));
    (void)Group(group).all_reduce(at::ones({100'000}));  // neither waited for nor kept
    group.barrier();
  });
}

TEST(Group, AllowsConcurrentCallsFromSeveralThreads) {
  over(2, [](const Group& group) {
    const Group left = group.subset({0, 1}, "left"), right = group.subset({0, 1}, "right");
    const auto hammer = [](const Group& on, double start) {
      for (int i = 0; i < 60; ++i) {
        const at::Tensor x = at::full({i % 3 == 0 ? 50'000 : 10}, start);
        on.all_reduce(x).wait();
        ASSERT_EQ(x[0].item<double>(), 2 * start);
      }
    };
    // Each thread has its own group, in any order; on the shared group all calls are equal.
    std::thread a(hammer, left, 1.0), b(hammer, right, 2.0);
    hammer(group, 3.0);
    a.join();
    b.join();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 40; ++i) {
          const at::Tensor x = at::ones({64});
          group.all_reduce(x).wait();
          ASSERT_EQ(x[63].item<float>(), 2.0f);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(Group, AllRanksSeeSymmetricTensors) {
  at::Tensor survivor;
  over(3, [&](const Group& group) {
    const int rank = group.rank();
    SymmetricTensor shared = group.symmetric({4, 1000}, at::kFloat);
    expect_same(shared.local(), at::zeros({4, 1000}));
    shared.local().fill_(rank + 1);
    group.barrier();
    for (int r = 0; r < 3; ++r) expect_same(shared.of(r), at::full({4, 1000}, r + 1.0f));
    group.barrier();
    group.all_reduce(shared.local(), {ReduceOp::avg, Traffic::model, ""}).wait();
    expect_same(shared.local(), at::full({4, 1000}, 2.0f));
    const SymmetricTensor halves = group.symmetric({7}, at::kBFloat16);
    EXPECT_EQ(halves.local().scalar_type(), at::kBFloat16);
    group.barrier();
    if (rank == 1) survivor = shared.of(2);
  });
  // The tensor keeps the memory alive after group and ranks are gone.
  expect_same(survivor, at::full({4, 1000}, 2.0f));
}

TEST(Group, SubsetsKeepTheOrderOfTheirList) {
  over(4, [](const Group& group) {
    const int rank = group.rank();
    if (rank != 2) {
      const Group some = group.subset({3, 0, 1}, "some");
      EXPECT_EQ(some.size(), 3);
      EXPECT_EQ(some.rank(), rank == 3 ? 0 : rank + 1);
      const at::Tensor whole = at::zeros({3}, at::kInt);
      some.all_gather(whole, at::full({1}, rank, at::kInt)).wait();
      expect_same(whole, at::tensor({3, 0, 1}, at::kInt));
      EXPECT_NE(some.name().find("some[3,0,1]"), std::string::npos) << some.name();
    } else {
      EXPECT_CONTAINS(complaint([&] { (void)group.subset({3, 0, 1}, "some"); }), "not in the list");
    }
    // The same list creates another group.
    const Group first = group.subset({0, 1, 2, 3}, "all"),
                second = group.subset({0, 1, 2, 3}, "all");
    EXPECT_NE(first.name(), second.name());
    const at::Tensor x = at::ones({1});
    Work a = first.all_reduce(x);
    a.wait();
    second.all_reduce(x).wait();
    EXPECT_EQ(x.item<float>(), 16.0f);
  });
}

TEST(Group, SplitsByColorAndOrdersByKey) {
  over(4, [](const Group& group) {
    const int rank = group.rank();
    const Group half = group.split(rank % 2, -rank);
    EXPECT_EQ(half.size(), 2);
    EXPECT_EQ(half.rank(), rank < 2 ? 1 : 0);
    const at::Tensor x = at::full({1}, rank, at::kInt);
    half.all_reduce(x).wait();
    EXPECT_EQ(x.item<int>(), rank % 2 == 0 ? 2 : 4);
    const Group alone = group.split(rank == 3 ? -1 : 0);
    EXPECT_EQ(alone.size(), rank == 3 ? 1 : 3);
    EXPECT_EQ(alone.rank(), rank == 3 ? 0 : rank);
  });
}

TEST(Group, DryGroupRejectsSplitAndCreatesSubsets) {
  const Group group(dry::make_backend(5, 64, "plan"));
  EXPECT_CONTAINS(complaint([&] { (void)group.split(0); }), "subset()");
  EXPECT_EQ(group.subset({4, 5}, "pair").rank(), 1);
  const at::Tensor x = at::ones({64});
  group.all_reduce(x).wait();
  EXPECT_EQ(group.traffic().sent_bytes, 2u * 63 * 4);
}

// Checks the group along some axes: its members are the ranks whose coordinates differ from this
// rank's along these axes only, in ascending order.
void check_group(const Mesh& mesh, AxisSet axes) {
  const Group& group = mesh.group(axes);
  std::vector<int> expected;
  for (int rank = 0; rank < mesh.world().size(); ++rank) {
    const Coordinate at = mesh.axes().coordinate_of(rank);
    bool same = true;
    for (const Axis axis : kAllAxes) {
      same = same && (axes.contains(axis) || at[axis] == mesh.coordinate()[axis]);
    }
    if (same) expected.push_back(rank);
  }
  ASSERT_EQ(group.size(), static_cast<int>(expected.size()));
  const at::Tensor members = at::zeros({group.size()}, at::kInt);
  group.all_gather(members, at::full({1}, mesh.world().rank(), at::kInt)).wait();
  for (int i = 0; i < group.size(); ++i) {
    EXPECT_EQ(members[i].item<int>(), expected[static_cast<std::size_t>(i)]);
    if (i == group.rank()) {
      EXPECT_EQ(members[i].item<int>(), mesh.world().rank());
    }
  }
  EXPECT_EQ(&mesh.group(axes), &group) << "a second call must return the cached group";
}

TEST(Mesh, CreatesGroupsForAllShapesOfEightRanks) {
  over(8, [](const Group& world) {
    for (const int dp : {1, 2, 4, 8}) {
      for (const int tp : {1, 2, 4, 8}) {
        if (8 % (dp * tp) != 0) continue;
        const Mesh mesh(world, {{Axis::dp_shard, dp}, {Axis::tp, tp}, {Axis::pp, 8 / (dp * tp)}});
        for (const Axis axis : kAllAxes) check_group(mesh, axis);
        check_group(mesh, AxisSet());
        check_group(mesh, {Axis::dp_shard, Axis::tp});
        check_group(mesh, {Axis::pp, Axis::tp});
        check_group(mesh, {Axis::dp_shard, Axis::pp});
        check_group(mesh, AxisSet::all());
        // Summing along all axes, one after another, gives the sum over the world.
        const at::Tensor x = at::full({3}, world.rank() + 1, at::kLong);
        for (const Group& axis : {mesh.pp(), mesh.tp(), mesh.dp()}) axis.all_reduce(x).wait();
        expect_same(x, at::full({3}, 36, at::kLong));
      }
    }
  });
}

// Counts the reported calls.
struct Listener final : Observer {
  void ran(const Collective& call, Time begin, Time end) override { note(ran_, call, begin, end); }
  void waited(const Collective& call, Time begin, Time end) override {
    note(waited_, call, begin, end);
  }
  void note(std::map<std::string, int>& where, const Collective& call, Time begin, Time end) {
    const std::lock_guard lock(mutex);
    ++where[call.label];
    EXPECT_LE(begin, end);
    EXPECT_EQ(call.in, nullptr);
  }
  std::mutex mutex;
  std::map<std::string, int> ran_, waited_;
};

TEST(Group, ReportsEveryCallToTheObserverOnce) {
  over(2, [](const Group& group) {
    const auto listener = std::make_shared<Listener>();
    const Group copy = group;
    const auto labeled = [](const char* label) {
      Call call;
      call.label = label;
      return call;
    };
    // There is no observer yet, so this is not reported.
    copy.all_reduce(at::ones({4}), labeled("before")).wait();
    group.observe(listener);
    for (const std::int64_t count : {1, 1000, 3'000'000}) {  // immediate, queued, in pieces
      const at::Tensor x = at::ones({count});
      copy.all_reduce(x, labeled("reduce")).wait();
      copy.all_gather(at::empty({2 * count}), x, labeled("gather")).wait();
      const Work sent = copy.send(x, 1 - copy.rank(), labeled("message"));
      copy.recv(at::empty({count}), 1 - copy.rank(), labeled("message")).wait();
      sent.wait();
      sent.wait();
    }
    group.barrier();
    group.observe(nullptr);
    copy.all_reduce(at::ones({4}), labeled("after")).wait();
    const std::lock_guard lock(listener->mutex);
    const std::map<std::string, int> all = {{"gather", 3}, {"message", 6}, {"reduce", 3}};
    EXPECT_EQ(listener->ran_, all);
    for (const auto& [label, times] : listener->waited_) EXPECT_LE(times, all.at(label)) << label;
  });
}

// Backend of two ranks whose calls end only when they are waited for.
class Slow final : public Backend {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string kind() const override { return "slow"; }
  std::string name() const override { return "slow"; }
  Work submit(Collective, Attachments) override {
    struct Late final : WorkState {
      void wait() override { ended = true; }
      bool done() const override { return ended; }
      bool ended = false;
    };
    return Work(std::make_shared<Late>());
  }
  std::shared_ptr<SymmetricMemory> symmetric(std::size_t) override { return nullptr; }
  std::shared_ptr<Backend> subgroup(std::span<const int>, std::string) override { return nullptr; }
  TrafficCounts traffic() const override { return {}; }
};

TEST(Group, ReportsOnlyBlockingWaitsToTheObserver) {
  const Group group(std::make_shared<Slow>());
  const auto listener = std::make_shared<Listener>();
  group.observe(listener);
  Call call;
  call.label = "x";
  const Work work = group.all_reduce(at::ones({4}), call);
  EXPECT_FALSE(work.done());
  EXPECT_TRUE(listener->waited_.empty());
  work.wait();
  work.wait();  // already done
  EXPECT_EQ(listener->waited_, (std::map<std::string, int>{{"x", 1}}));
  EXPECT_TRUE(listener->ran_.empty());  // this backend does not report it
}

TEST(Mesh, RejectsAWrongShape) {
  over(2, [](const Group& world) {
    const std::string text = complaint([&] { Mesh(world, "dp=2,tp=2"); });
    EXPECT_CONTAINS(text, "dp 2 × tp 2 × pp 1 for 2 ranks");
    EXPECT_CONTAINS(complaint([&] { Mesh(world, {{Axis::dp_shard, -2}}); }), "at least 1");
  });
}

}  // namespace
}  // namespace tessera::comm
