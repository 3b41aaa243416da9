// CUDA tensors over shm, staged through pinned memory, and Tessera's own sums on the GPU. Skipped
// without a GPU.

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tessera/comm/nccl/ordered.h"
#include "tessera/comm/threads.h"
#include "tests/comm/cuda_cases.h"

namespace tessera::comm {
namespace {

using namespace testing;

class Staged : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Cuda, Staged, ::testing::Values(2, 4));

TEST_P(Staged, ProcessesMatchHostResultsBitwise) {
  NEEDS_GPU();
  run_gpu_ranks(GetParam(), [](std::shared_ptr<Backend> host, std::shared_ptr<Peers>) {
    const Group group(host);
    // Few rounds, because processes share a GPU in time slices of milliseconds.
    compare_with_host(group, group, /*close=*/false, 70'001, {ReduceOp::avg});
    expect_order(group);
    expect_dropped_tensors_live(group);
  });
}

TEST_P(Staged, ThreadsMatchHostResultsBitwise) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<Backend>, std::shared_ptr<Peers>) {
    run_threads(GetParam(), [](std::shared_ptr<Backend> host) {
      const Group group(host);
      compare_with_host(group, group, /*close=*/false, 20'001);
      expect_order(group);
    });
  });
}

TEST(Cuda, DefaultGroupIsTheIdentity) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<Backend>, std::shared_ptr<Peers>) {
    compare_with_host(Group(), Group(), /*close=*/false, 1001);
    expect_order(Group());
  });
}

// Random bit patterns: all kinds of NaNs, infinities, both zeros, subnormals.
TEST(Cuda, OrderedSumsMatchTheReferenceBitwise) {
  NEEDS_GPU();
  run_gpu_ranks(1, [](std::shared_ptr<Backend>, std::shared_ptr<Peers>) {
    const std::size_t count = 100'000;
    for (const auto& [dtype, type] : kTypes) {
      for (const ReduceOp op : kReductions) {
        for (const int ranks : {1, 2, 3, 7}) {
          for (const bool wild : {false, true}) {
            std::vector<Bytes> inputs;
            std::vector<at::Tensor> sources;
            std::vector<const void*> pointers;
            for (int r = 0; r < ranks; ++r) {
              inputs.push_back(wild ? make_input(DType::u8, count * size_of(dtype), r, 9)
                                    : make_input(dtype, count, r));
              sources.push_back(as_tensor(inputs.back()).clone().view(type).to(kGpu));
            }
            for (const Bytes& each : inputs) pointers.push_back(each.data());
            const std::int64_t divisor = op == ReduceOp::avg ? ranks : 1;
            Bytes want(count * size_of(dtype));
            void* to[] = {want.data()};
            reduce_reference({dtype, dtype, op, divisor}, pointers, to, count);
            const at::Tensor out = at::empty_like(sources.front());
            nccl::reduce_in_order(out, sources, op, divisor);
            EXPECT_TRUE(as_bytes(out) == want)
                << name(dtype) << " " << name(op) << " over " << ranks << (wild ? " wild" : "");
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera::comm
