// Prints the durations of collectives on CUDA tensors. A program, not a test: run it on the machine
// of interest. Processes that share a GPU run in time slices of milliseconds, so for two NCCL ranks
// on one GPU only the time on the caller's thread is meaningful.

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>

#include "tessera/comm/group.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/comm/threads.h"
#include "tests/comm/gpu_ranks.h"

namespace tessera::comm {
namespace {

using testing::ask_in_child;
using testing::run_gpu_ranks;

void wait_for_gpu() {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  guard.synchronizeStream(guard.getStream(at::Device(at::kCUDA, 0)));
}

// Returns the median in microseconds.
double median(int times, const std::function<void()>& what) {
  std::vector<double> all;
  for (int i = 0; i < times + 3; ++i) {
    const auto began = std::chrono::steady_clock::now();
    what();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    if (i >= 3) all.push_back(took.count());
  }
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[static_cast<std::size_t>(times / 2)];
}

void measure(const Group& group, const char* what) {
  for (const std::int64_t bytes : {4ll << 10, 1ll << 20, 25ll << 20}) {
    const at::Tensor x = at::ones({bytes / 4}, at::device(at::Device(at::kCUDA, 0)));
    const at::Tensor out = at::zeros_like(x);
    wait_for_gpu();
    double submit = 0;
    const auto call = [&] {
      const auto began = std::chrono::steady_clock::now();
      const Work work = group.all_reduce(out, x);
      submit += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
                    .count();
      work.wait();
    };
    const int times = 50;
    const double whole = median(times, [&] {
      call();
      wait_for_gpu();
    });
    submit = 0;
    const double host = median(times, call);
    wait_for_gpu();
    if (group.rank() != 0) continue;
    std::printf(
        "TIMING %s all_reduce %lld bytes, %d ranks: to the end %.1f us; the caller %.1f us "
        "(of it the call %.1f us)\n",
        what, static_cast<long long>(bytes), group.size(), whole, host, submit / (times + 3));
    std::fflush(stdout);
  }
}

TEST(CudaTiming, Staged) {
  if (!ask_in_child([] { return std::string(torch::cuda::is_available() ? "" : "no"); }).empty()) {
    GTEST_SKIP() << "no GPU";
  }
  run_gpu_ranks(2, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers>) {
    measure(Group(host), "staged over shm, processes,");
  });
  run_gpu_ranks(1, [](std::shared_ptr<Backend>, std::shared_ptr<Peers>) {
    run_threads(2, [](std::shared_ptr<Backend> host) {
      measure(Group(host), "staged over shm, threads,");
    });
  });
}

TEST(CudaTiming, Nccl) {
  const std::string why = ask_in_child([] { return nccl::why_not(); });
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string version = ask_in_child([] { return nccl::version(); });
  for (const int ranks : {1, 2}) {
    if (ranks == 2 && version < "2.30") GTEST_SKIP() << "two ranks on one GPU need NCCL 2.30";
    run_gpu_ranks(ranks, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
      setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
      std::vector<int> all;
      for (int r = 0; r < host->size(); ++r) all.push_back(r);
      using Check = nccl::NcclOptions::Check;
      for (const Check check : {Check::every_call, Check::new_calls, Check::never}) {
        for (const bool deterministic : {false, true}) {
          const std::string name = std::string("nccl, ") +
                                   (check == Check::every_call  ? "every call checked, "
                                    : check == Check::new_calls ? "new calls checked, "
                                                                : "calls not checked, ") +
                                   (deterministic ? "deterministic," : "native,");
          measure(Group(nccl::make_backend(host->subgroup(all, name), peers, 0, {},
                                           {deterministic, check})),
                  name.c_str());
        }
      }
    });
  }
}

// Creates a group of all ranks with a new communicator, and by splitting the world's communicator.
TEST(CudaTiming, NcclGroups) {
  const std::string why = ask_in_child([] { return nccl::why_not(); });
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string version = ask_in_child([] { return nccl::version(); });
  if (version < "2.30") GTEST_SKIP() << "several ranks on one GPU need NCCL 2.30";
  for (const int ranks : {2, 4, 8}) {
    run_gpu_ranks(ranks, [](std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers) {
      setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
      const Group world(nccl::make_backend(host, peers, 0, {}, {}));
      std::vector<int> all;
      for (int r = 0; r < world.size(); ++r) all.push_back(r);
      std::vector<Group> made;
      const double created = median(5, [&] { made.push_back(world.subset(all, "new")); });
      const double split = median(5, [&] { made.push_back(world.partition(all, "split")); });
      if (world.rank() == 0) {
        std::printf("TIMING nccl group of %d ranks: new %.1f ms, split %.1f ms\n", world.size(),
                    created / 1e3, split / 1e3);
      }
    });
  }
}

}  // namespace
}  // namespace tessera::comm
