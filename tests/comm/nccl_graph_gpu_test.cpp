// NCCL on one GPU: calls with parts, calls in CUDA graphs, and the times of calls.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <mutex>

#include "tessera/comm/observer.h"
#include "tessera/core/errors.h"
#include "tests/comm/cuda_cases.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using Sizes = std::vector<std::size_t>;

// A CUDA graph through the runtime's C interface.
class Graph {
 public:
  explicit Graph(const c10::Stream& stream) : stream_(stream.native_handle()) {
    find(begin_, "cudaStreamBeginCapture");
    find(end_, "cudaStreamEndCapture");
    find(instantiate_, "cudaGraphInstantiate");
    find(launch_, "cudaGraphLaunch");
  }
  void capture(const std::function<void()>& body) {
    ASSERT_EQ(begin_(stream_, /*thread-local=*/1), 0);
    body();
    void* graph = nullptr;
    ASSERT_EQ(end_(stream_, &graph), 0);
    ASSERT_EQ(instantiate_(&executable_, graph, 0), 0);
  }
  void replay() { ASSERT_EQ(launch_(executable_, stream_), 0); }

 private:
  template <typename Function>
  static void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    ASSERT_NE(function, nullptr) << name;
  }
  void* const stream_;
  void* executable_ = nullptr;
  int (*begin_)(void*, int) = nullptr;
  int (*end_)(void*, void**) = nullptr;
  int (*instantiate_)(void**, void*, unsigned long long) = nullptr;
  int (*launch_)(void*, void*) = nullptr;
};

Call with_parts(const Sizes& sizes) {
  Call call;
  call.label = "bucket";
  call.parts = std::make_shared<Sizes>(sizes);
  return call;
}

std::int64_t total(const Sizes& sizes) {
  std::int64_t sum = 0;
  for (const std::size_t size : sizes) sum += static_cast<std::int64_t>(size);
  return sum;
}

// reduce_scatter and all_gather with parts: same results as over the host, and one call each.
void expect_parts(const Group& group, const Group& host, const Sizes& sizes) {
  const Call call = with_parts(sizes);
  const std::int64_t count = total(sizes);
  const auto n = static_cast<std::size_t>(group.size());
  std::int64_t own = 0;
  for (const std::size_t size : sizes) {
    own += static_cast<std::int64_t>(shard_of(size, group.size(), group.rank()).size);
  }
  const auto run = [&](const Group& over, c10::Device device) {
    const at::Tensor whole =
        (at::arange(count, at::kFloat).remainder(13) + 100 * group.rank()).to(device);
    const at::Tensor shards = at::zeros({own}, whole.options()), again = at::zeros_like(whole);
    over.reduce_scatter(shards, whole, call).wait();
    over.all_gather(again, shards, call).wait();
    const at::Tensor in_place = whole.clone();
    over.reduce_scatter(in_place, in_place, call).wait();
    over.all_gather(in_place, in_place, call).wait();
    return std::vector<at::Tensor>{shards, again, in_place};
  };
  const TrafficCounts before = group.traffic();
  const auto got = run(group, kGpu);
  const TrafficCounts sent = group.traffic() - before;
  EXPECT_EQ(sent.calls[static_cast<std::size_t>(Op::reduce_scatter)], 2u);
  EXPECT_EQ(sent.calls[static_cast<std::size_t>(Op::all_gather)], 2u);
  std::uint64_t bytes = 0;
  for (const std::size_t size : sizes) bytes += 4 * (n - 1) * shard_stride(size, group.size()) * 4;
  EXPECT_EQ(sent.sent_bytes, bytes);
  const auto want = run(host, at::kCPU);
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_same(got[i], want[i], "result " + std::to_string(i));  // whole numbers: no rounding
  }
}

const std::vector<Sizes> kParts = {{12}, {12, 24, 36, 12}, {5, 0, 7, 64}, {4096, 8000, 3}, {1}};

TEST(CudaNccl, CountsPartsAsOneCall) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group group(nccl::make_backend(host, peers, 0, {}));
    for (const Sizes& sizes : kParts) expect_parts(group, Group(host), sizes);
    expect_parts(group, Group(host), Sizes(600, 1600));
  });
}

TEST(CudaNccl, TwoRanksReduceAndGatherParts) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    for (const bool deterministic : {false, true}) {
      nccl::NcclOptions options;
      options.deterministic = deterministic;
      const std::vector<int> both = {0, 1};
      const auto own = host->subgroup(both, deterministic ? "exact" : "quick");
      const Group group(nccl::make_backend(own, peers, 0, {}, options));
      for (const Sizes& sizes : kParts) expect_parts(group, Group(host), sizes);
    }
  });
}

TEST(Cuda, CountsStagedPartsAsOneCall) {
  NEEDS_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers>) {
    for (const Sizes& sizes : kParts) expect_parts(Group(host), Group(host), sizes);
  });
}

TEST(CudaNccl, PartsCanBeCapturedIntoACudaGraph) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group group(nccl::make_backend(host, peers, 0, {}));
    const Group second = group.subset({0}, "another");
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::StreamGuard side(guard.getStreamFromGlobalPool(kGpu, /*isHighPriority=*/false));
    const Sizes sizes = {4000, 1, 77};
    const Call call = with_parts(sizes);
    const at::Tensor x = at::zeros({total(sizes)}, at::device(kGpu));
    const at::Tensor sum = at::zeros_like(x), all = at::zeros_like(x);
    const auto step = [&] {
      x.add_(1);
      const Work reduced = group.reduce_scatter(sum, x, call);
      x.mul_(1);  // concurrent with the call
      reduced.wait();
      second.all_gather(all, sum, call).wait();
      all.mul_(10);
    };
    step();
    guard.synchronizeStream(side.current_stream());
    Graph graph(side.current_stream());
    const TrafficCounts before = group.traffic();
    graph.capture(step);
    const TrafficCounts once = group.traffic() - before;
    EXPECT_EQ(once.calls[static_cast<std::size_t>(Op::reduce_scatter)], 1u);
    EXPECT_EQ(x[0].item<float>(), 1.0f);  // captured, not run
    std::this_thread::sleep_for(50ms);    // the watchdog must ignore captured calls
    for (int i = 1; i <= 3; ++i) {
      graph.replay();
      if (i > 1) group.add_traffic(once);
      EXPECT_EQ(all[4077].item<float>(), 10.0f * static_cast<float>(i + 1));
    }
    const TrafficCounts sent = group.traffic() - before;
    EXPECT_EQ(sent.calls[static_cast<std::size_t>(Op::reduce_scatter)], 3u);
    step();  // and again without the graph
    EXPECT_EQ(all[0].item<float>(), 50.0f);
  });
}

TEST(Cuda, RejectsStagedCallsDuringCapture) {
  NEEDS_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers>) {
    const Group group(host);
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::StreamGuard side(guard.getStreamFromGlobalPool(kGpu, /*isHighPriority=*/false));
    const at::Tensor x = at::ones({4}, at::device(kGpu));
    guard.synchronizeStream(side.current_stream());
    Graph graph(side.current_stream());
    graph.capture([&] {
      x.add_(1);
      try {
        (void)group.all_reduce(x);
        ADD_FAILURE() << "no error";
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("CUDA graph"), std::string::npos) << error.what();
      }
    });
    group.all_reduce(x).wait();
    EXPECT_EQ(x[3].item<float>(), 2.0f);
  });
}

class Spans final : public Observer {
 public:
  struct Span {
    std::string label;
    Time begin, end;
  };
  void ran(const Collective& call, Time begin, Time end) override {
    const std::lock_guard lock(mutex_);
    spans_.push_back({call.label, begin, end});
  }
  void waited(const Collective&, Time, Time) override {}
  std::vector<Span> spans() const {
    const std::lock_guard lock(mutex_);
    return spans_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

// The call waits on the GPU for a slow input. The reported time is that of NCCL only, after the
// input was ready.
TEST(CudaNccl, ReportsGpuTimesToObservers) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    // A group of one rank reports nothing, so this uses the backend directly.
    const auto backend = nccl::make_backend(host, peers, 0, {});
    const auto spans = std::make_shared<Spans>();
    const at::Tensor x = at::ones({1 << 24}, at::device(kGpu)), out = at::zeros_like(x);
    Collective call;
    call.op = Op::all_reduce;
    call.dtype = DType::f32;
    call.in = x.data_ptr();
    call.out = out.data_ptr();
    call.count = 1 << 24;
    const auto submit = [&](const std::string& label) {
      call.label = label;
      Attachments with;
      with.ran = [spans, told = call](Observer::Time begin, Observer::Time end) {
        spans->ran(told, begin, end);
      };
      return backend->submit(call, with);
    };
    submit("first").wait();
    be_slow();
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    guard.synchronizeStream(guard.getStream(kGpu));
    const auto began = std::chrono::steady_clock::now();
    be_slow();
    const Work work = submit("second");
    work.wait();
    while (!work.done()) std::this_thread::yield();
    const auto ended = std::chrono::steady_clock::now();
    for (const auto end = ended + 5s;
         spans->spans().size() < 2 && std::chrono::steady_clock::now() < end;) {
      std::this_thread::sleep_for(1ms);
    }
    const auto heard = spans->spans();
    ASSERT_EQ(heard.size(), 2u);
    EXPECT_EQ(heard[1].label, "second");
    EXPECT_GT(heard[1].begin, began);
    EXPECT_LT(heard[1].begin, heard[1].end);
    EXPECT_LT(heard[1].end, ended + 1ms);  // tolerance for the two clocks
    // Excludes the wait for its input, so it begins in the last part of the whole time.
    EXPECT_GT(heard[1].begin - began, (heard[1].end - heard[1].begin));
    std::chrono::nanoseconds busy{};
    for (const auto& span : heard) {
      busy += std::chrono::duration_cast<std::chrono::nanoseconds>(span.end - span.begin);
    }
    EXPECT_GE(backend->traffic().busy_ns, static_cast<std::uint64_t>(busy.count()));
  });
}

TEST(CudaNccl, OneRankRegistersNoBuffer) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group group(nccl::make_backend(host, peers, 0, {}));
    const at::Tensor x = at::ones({1 << 20}, at::device(kGpu));
    EXPECT_EQ(group.register_buffer(x), nullptr);  // has no benefit for one rank
    EXPECT_EQ(Group(host).register_buffer(at::ones({4})), nullptr);
  });
}

TEST(CudaNccl, TwoRanksUseARegisteredBuffer) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    const Group group(nccl::make_backend(host, peers, 0, {}));
    const at::Tensor x = at::ones({1 << 20}, at::device(kGpu));
    const std::shared_ptr<void> handle = group.register_buffer(x);
    for (int i = 0; i < 3; ++i) group.all_reduce(x).wait();
    EXPECT_EQ(x[7].item<float>(), 8.0f);
  });
}

// Both ranks have made both calls before, so they agree on nothing in advance. Then one rank swaps
// the calls, which have the same size, so that NCCL itself notices nothing.
TEST(CudaNccl, ReportsKnownCallsInDifferentOrder) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    const Group group(nccl::make_backend(host, peers, 0, {}));
    const at::Tensor x = at::ones({1000}, at::device(kGpu));
    const auto call = [&](const char* label) {
      group.all_reduce(x, {ReduceOp::max, Traffic::model, label}).wait();
    };
    call("one");
    call("two");
    try {
      for (int i = 0; i < 2000; ++i) {
        const bool turned = i == 100 && group.rank() == 1;
        call(turned ? "two" : "one");
        call(turned ? "one" : "two");
        if (i % 10 == 0) std::this_thread::sleep_for(2ms);
      }
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("#203"), std::string::npos) << text;
      EXPECT_NE(text.find("\"one\""), std::string::npos) << text;
      EXPECT_NE(text.find("\"two\""), std::string::npos) << text;
    }
  });
}

}  // namespace
}  // namespace tessera::comm
