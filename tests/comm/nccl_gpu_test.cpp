// NCCL on one GPU: with one rank, and with two if this NCCL lets them share it.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "tessera/comm/bootstrap.h"
#include "tessera/comm/dry/backend.h"
#include "tessera/comm/mesh.h"
#include "tessera/core/errors.h"
#include "tests/comm/cuda_cases.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using namespace testing;

TEST(CudaNccl, OneRankIsTheIdentity) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const auto backend = nccl::make_backend(host, peers, 0, {});
    const Group group(backend);
    EXPECT_EQ(group.backend(), "nccl");
    compare_with_host(group, Group(host), /*close=*/false, 70'001);
    expect_order(group);
    expect_dropped_tensors_live(group);
    // Bits that adding zero, or multiplying by one, would change.
    const at::Tensor x =
        at::tensor({0x7fc01234, -0x003fedcc, int(0x80000000)}, at::kInt).view(at::kFloat).to(kGpu);
    const at::Tensor out = at::zeros_like(x);
    for (const ReduceOp op : kReductions) {
      group.all_reduce(out, x, {op, Traffic::model, ""}).wait();
      expect_same(out, x, name(op));
    }
    // Host tensors use the host backend.
    const at::Tensor y = at::ones({3});
    group.all_reduce(y).wait();
    EXPECT_EQ(y[2].item<float>(), 1.0f);
    group.barrier();
    EXPECT_EQ(group.symmetric({4}).local().sum().item<float>(), 0.0f);
    EXPECT_EQ(group.subset({0}, "again").backend(), "nccl");
    const Work work = group.all_reduce(x);
    while (!work.done()) std::this_thread::yield();
  });
}

TEST(CudaNccl, OneRankIsTheIdentityInDeterministicMode) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    nccl::NcclOptions options;
    options.deterministic = true;
    const Group group(nccl::make_backend(host, peers, 0, {}, options));
    compare_with_host(group, Group(host), /*close=*/false, 70'001);
  });
}

TEST(CudaNccl, RejectsUnsupportedCalls) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const auto expect_error = [](const std::function<void()>& call, const std::string& word) {
      try {
        call();
        ADD_FAILURE() << "no error; expected one that contains " << word;
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      }
    };
    expect_error([&] { nccl::make_backend(host, peers, 99, {}); }, "its GPU is number 99");
    const auto backend = nccl::make_backend(dry::make_backend(0, 1, "self"), nullptr, 0, {});
    std::vector<float> x(4);
    const Collective call{
        Op::all_reduce, DType::f32, ReduceOp::sum, Traffic::model, x.data(), x.data(), 4, -1, ""};
    expect_error([&] { (void)backend->submit(call); }, "in host memory; must be on cuda:0");
    Attachments attachments;
    attachments.after = [] {};
    expect_error([&] { (void)backend->submit(call, attachments); }, "before or after");
  });
}

TEST(CudaNccl, AllRanksNameARankWithoutItsGpu) {
  NEEDS_NCCL();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    try {
      nccl::make_backend(host, peers, host->rank() == 1 ? 99 : 0, {});
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1: its GPU is number 99"), std::string::npos)
          << error.what();
    }
  });
}

TEST(CudaNccl, WorksInAProcessWithoutALauncher) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend>, std::shared_ptr<Peers>) {
    InitOptions options;
    options.backend = "nccl";
    const Group group = init(options);
    EXPECT_EQ(group.backend(), "nccl");
    const at::Tensor x = at::ones({3}, at::device(kGpu));
    group.all_reduce(x).wait();
    EXPECT_EQ(x[2].item<float>(), 1.0f);
  });
}

// A CUDA graph with a collective, captured and replayed through the runtime's C interface.
TEST(CudaNccl, CanBeCapturedIntoACudaGraph) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const auto find = [](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
      ASSERT_NE(function, nullptr) << name;
    };
    int (*begin)(void*, int) = nullptr;
    int (*end)(void*, void**) = nullptr;
    int (*instantiate)(void**, void*, unsigned long long) = nullptr;
    int (*launch)(void*, void*) = nullptr;
    find(begin, "cudaStreamBeginCapture");
    find(end, "cudaStreamEndCapture");
    find(instantiate, "cudaGraphInstantiate");
    find(launch, "cudaGraphLaunch");
    const Group group(nccl::make_backend(host, peers, 0, {}));
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::StreamGuard side(guard.getStreamFromGlobalPool(kGpu, /*isHighPriority=*/false));
    const at::Tensor x = at::zeros({1000}, at::device(kGpu)), out = at::zeros_like(x);
    group.all_reduce(out, x).wait();  // one-time initialization must not be captured
    guard.synchronizeStream(side.current_stream());
    void* stream = side.current_stream().native_handle();
    void *graph = nullptr, *executable = nullptr;
    ASSERT_EQ(begin(stream, /*thread-local=*/1), 0);
    x.add_(1);
    group.all_reduce(out, x).wait();
    out.mul_(10);
    ASSERT_EQ(end(stream, &graph), 0);
    ASSERT_EQ(instantiate(&executable, graph, 0), 0);
    std::this_thread::sleep_for(50ms);  // the watchdog must ignore captured calls
    for (int i = 1; i <= 3; ++i) {
      ASSERT_EQ(launch(executable, stream), 0);
      EXPECT_EQ(out[999].item<float>(), 10.0f * static_cast<float>(i));
    }
    group.all_reduce(out, x).wait();
    EXPECT_EQ(out[999].item<float>(), 3.0f);
  });
}

std::shared_ptr<Backend> shared_gpu(const std::shared_ptr<Backend>& host,
                                    const std::shared_ptr<Peers>& peers, GroupOptions options = {},
                                    nccl::NcclOptions nccl = {}) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  return nccl::make_backend(host, peers, 0, options, nccl);
}

TEST(CudaNccl, TwoRanksMatchHostResults) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group group(shared_gpu(host, peers));
    compare_with_host(group, Group(host), /*close=*/true, 20'001);
    expect_order(group);
    expect_dropped_tensors_live(group);
    // Host and device tensors in turn, and a group with the ranks in reverse order.
    const Group turned = group.subset({1, 0}, "turned");
    EXPECT_EQ(turned.rank(), 1 - group.rank());
    for (int i = 0; i < 5; ++i) {
      const at::Tensor x = at::zeros({2}, at::device(i % 2 == 0 ? kGpu : at::kCPU));
      turned.all_gather(x, at::full({1}, group.rank() + 1.0f, x.options())).wait();
      EXPECT_EQ(x[0].item<float>(), 2.0f);
      EXPECT_EQ(x[1].item<float>(), 1.0f);
    }
  });
}

// Mesh creates its groups with Group::partition(), which splits the communicator of the world.
TEST(CudaNccl, FourRanksSplitIntoTheGroupsOfAMesh) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(4, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group world(shared_gpu(host, peers));
    const auto sum_of_ranks = [&](const Group& group) {
      const at::Tensor x = at::full({1000}, world.rank() + 1.0f, at::device(kGpu));
      group.all_reduce(x).wait();
      return x[999].item<float>();
    };
    // Calls of the world are in flight while it is split.
    const at::Tensor busy = at::ones({1 << 22}, at::device(kGpu));
    const Work work = world.all_reduce(busy);
    const int other = world.rank() ^ 1;
    const Group pair = world.partition(world.rank() < 2 ? std::vector{1, 0} : std::vector{3, 2},
                                       "pair");  // the ranks in reverse order
    work.wait();
    EXPECT_EQ(busy[0].item<float>(), 4.0f);
    EXPECT_EQ(pair.rank(), other % 2);
    EXPECT_EQ(sum_of_ranks(pair), world.rank() + other + 2.0f);
    EXPECT_EQ(sum_of_ranks(world.partition({world.rank()}, "alone")), world.rank() + 1.0f);
    EXPECT_EQ(sum_of_ranks(world.split(world.rank() % 2)), world.rank() % 2 == 0 ? 4.0f : 6.0f);
    const Mesh mesh(world, Axes("dp=2,tp=2"));
    EXPECT_EQ(sum_of_ranks(mesh.tp()), world.rank() < 2 ? 3.0f : 7.0f);
    EXPECT_EQ(sum_of_ranks(mesh.dp()), world.rank() % 2 == 0 ? 4.0f : 6.0f);
    EXPECT_EQ(sum_of_ranks(mesh.group({Axis::tp, Axis::dp_shard})), 10.0f);
  });
}

TEST(CudaNccl, TwoRanksMoveMoreThanTwoGiB) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group group(shared_gpu(host, peers));
    const std::int64_t count = (1ll << 31) + 5;
    const at::Tensor x = at::full({count}, group.rank() + 1, at::device(kGpu).dtype(at::kByte));
    group.all_reduce(x, {ReduceOp::max, Traffic::model, ""}).wait();  // reduced by Tessera
    EXPECT_EQ(x.min().item<int>(), 2);
    group.all_reduce(x).wait();  // reduced by NCCL
    EXPECT_EQ(x.min().item<int>(), 4);
    EXPECT_EQ(x.max().item<int>(), 4);
  });
}

TEST(CudaNccl, TwoRanksAreExactInDeterministicMode) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    nccl::NcclOptions options;
    options.deterministic = true;
    compare_with_host(Group(shared_gpu(host, peers, {}, options)), Group(host), /*close=*/false,
                      20'001);
  });
}

TEST(CudaNccl, TwoRanksMaySendBeforeTheyReceive) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    using Check = nccl::NcclOptions::Check;
    for (const Check check : {Check::never, Check::new_calls, Check::every_call}) {
      nccl::NcclOptions options;
      options.check = check;
      const std::vector<int> both = {0, 1};
      const Group group(
          shared_gpu(host->subgroup(both, "check " + std::to_string(static_cast<int>(check))),
                     peers, {}, options));
      const int other = 1 - group.rank();
      std::vector<Work> works;
      std::vector<at::Tensor> got;
      for (int i = 0; i < 5; ++i) {
        works.push_back(
            group.send(at::full({100'000}, 10.0f * group.rank() + i, at::device(kGpu)), other));
      }
      const at::Tensor x = at::ones({1000}, at::device(kGpu));
      group.all_reduce(x).wait();
      EXPECT_EQ(x[0].item<float>(), 2.0f);
      for (int i = 0; i < 5; ++i) {
        got.push_back(at::zeros({100'000}, at::device(kGpu)));
        works.push_back(group.recv(got.back(), other));
      }
      for (const Work& work : works) work.wait();
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(got[static_cast<std::size_t>(i)][99'999].item<float>(),
                  static_cast<float>(10 * other + i));
      }
      const auto traffic = group.traffic();
      EXPECT_EQ(traffic.sent_bytes, 5u * 400'000 + 4000);
      EXPECT_EQ(traffic.calls[static_cast<std::size_t>(Op::all_gather)], 0u);
    }
  });
}

TEST(CudaNccl, MismatchIsAnErrorOnBothRanksAndTheGroupStaysUsable) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group group(shared_gpu(host, peers));
    const auto disagree = [&](const std::function<Work()>& call,
                              const std::vector<std::string>& words) {
      try {
        call().wait();
        ADD_FAILURE() << "no error";
      } catch (const UsageError& error) {
        const std::string text = error.what();
        for (const std::string& word : words) {
          EXPECT_NE(text.find(word), std::string::npos) << text;
        }
      }
      const at::Tensor x = at::ones({7}, at::device(kGpu));
      group.all_reduce(x).wait();
      EXPECT_EQ(x[6].item<float>(), 2.0f);
    };
    const bool first = group.rank() == 0;
    const at::Tensor x = at::ones({first ? 5 : 6}, at::device(kGpu));
    disagree([&] { return group.all_reduce(x); },
             {"rank 0 called all_reduce(sum, 5 × f32)", "rank 1 called all_reduce(sum, 6 × f32)"});
    disagree([&] { return first ? group.broadcast(x, 0) : group.all_reduce(x); },
             {"broadcast(5 × f32, root 0)", "all_reduce(sum, 6 × f32)"});
    disagree([&] { return first ? group.send(x, 1) : group.recv(x, 0); },
             {"send(5 × f32", "recv(6 × f32"});
  });
}

// The rank dies after both ranks made the call, while the other's kernel waits for it on the GPU.
TEST(CudaNccl, NamesARankKilledDuringACollective) {
  NEEDS_SHARED_GPU();
  GroupOptions options;
  options.timeout = 60s;
  GpuRanks ranks(
      2,
      [&](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
        const Group group(shared_gpu(host, peers, options));
        const at::Tensor x = at::ones({1 << 20}, at::device(kGpu));
        group.all_reduce(x).wait();
        EXPECT_EQ(x[0].item<float>(), 2.0f);
        be_slow();
        group.barrier();
        const Call call{ReduceOp::sum, Traffic::model, "doomed"};
        if (group.rank() == 1) {
          for (int i = 0; i < 20; ++i) be_slow();  // delays its part by about a second
          group.all_reduce(x, call).wait();
          kill(getpid(), SIGKILL);
        }
        const Work work = group.all_reduce(x, call);
        work.wait();  // until the other rank makes the call; the GPU waits for its end
        const auto began = std::chrono::steady_clock::now();
        while (!work.done()) std::this_thread::sleep_for(1ms);
        try {
          work.wait();
          ADD_FAILURE() << "no error";
        } catch (const PeerError& error) {
          const std::string text = error.what();
          EXPECT_EQ(error.rank(), 1) << text;
          EXPECT_NE(text.find("#2 all_reduce"), std::string::npos) << text;
          EXPECT_NE(text.find("doomed"), std::string::npos) << text;
        }
        EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
        EXPECT_THROW(group.all_reduce(x).wait(), PeerError);
      },
      options);
  ranks.expect_success(0, 60s);
}

TEST(CudaNccl, NamesARankThatThrows) {
  NEEDS_SHARED_GPU();
  GpuRanks ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
    const Group group(shared_gpu(std::move(host), std::move(peers)));
    const at::Tensor x = at::ones({1000}, at::device(kGpu));
    group.all_reduce(x).wait();
    EXPECT_EQ(x[0].item<float>(), 2.0f);
    if (group.rank() == 1) throw DataError("(this is part of the test)");
    const auto began = std::chrono::steady_clock::now();
    try {
      // A new call, which the ranks agree on before it is launched.
      group.all_reduce(x, {ReduceOp::sum, Traffic::model, "after"}).wait();
      ADD_FAILURE() << "no error";
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 1) << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  });
  ranks.expect_success(0, 60s);
}

TEST(CudaNccl, NamesAStoppedRankAfterTheTimeout) {
  NEEDS_SHARED_GPU();
  GroupOptions options;
  options.timeout = 2s;
  GpuRanks ranks(
      2,
      [&](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
        const Group group(shared_gpu(host, peers, options));
        const at::Tensor x = at::ones({1000}, at::device(kGpu));
        group.all_reduce(x).wait();
        EXPECT_EQ(x[0].item<float>(), 2.0f);
        if (group.rank() == 1) kill(getpid(), SIGSTOP);
        try {
          group.all_reduce(x, {ReduceOp::sum, Traffic::model, "late"}).wait();
          ADD_FAILURE() << "no error";
        } catch (const PeerError& error) {
          EXPECT_EQ(error.rank(), 1) << error.what();
          EXPECT_NE(std::string(error.what()).find("#2 all_reduce(sum, 1000 × f32, \"late\")"),
                    std::string::npos)
              << error.what();
        }
      },
      options);
  ranks.expect_success(0, 60s);
}

}  // namespace
}  // namespace tessera::comm
