#pragma once

// Shared by the tests of CUDA tensors: compares every operation on a device with the host.

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/nccl/backend.h"
#include "tessera/comm/torch_dtype.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/comm/oracle.h"

namespace tessera::comm::testing {

inline const at::Device kGpu(at::kCUDA, 0);

// Returns why there is no GPU, or "".
inline const std::string& no_gpu() {
  static const std::string why = ask_in_child([] {
    return std::string(torch::cuda::is_available() ? "" : "torch::cuda::is_available() is false");
  });
  return why;
}
inline const std::string& no_nccl() {
  static const std::string why = ask_in_child([] { return nccl::why_not(); });
  return why;
}
// Returns why NCCL cannot have two ranks on one GPU, or "".
inline const std::string& no_shared_gpu() {
  static const std::string why = ask_in_child([] {
    const std::string version = nccl::version();
    int major = 0, minor = 0;
    std::sscanf(version.c_str(), "%d.%d", &major, &minor);
    return std::string(major * 100 + minor >= 230
                           ? ""
                           : "two ranks on one GPU need NCCL 2.30, this is " + version);
  });
  return why;
}
#define NEEDS_GPU() \
  if (!no_gpu().empty()) GTEST_SKIP() << "no GPU: " << no_gpu()
#define NEEDS_NCCL() \
  NEEDS_GPU();       \
  if (!no_nccl().empty()) GTEST_SKIP() << "no NCCL: " << no_nccl()
#define NEEDS_SHARED_GPU() \
  NEEDS_NCCL();            \
  if (!no_shared_gpu().empty()) GTEST_SKIP() << no_shared_gpu()

inline at::Tensor as_tensor(const Bytes& bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()),
                       {static_cast<std::int64_t>(bytes.size())}, at::dtype(at::kByte));
}
inline Bytes as_bytes(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu().contiguous();
  const auto* begin = static_cast<const std::byte*>(host.const_data_ptr());
  return Bytes(begin, begin + host.nbytes());
}
// Compares bits, so that NaNs are compared too.
inline void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  EXPECT_TRUE(as_bytes(got) == as_bytes(want)) << what;
}

inline const std::vector<std::pair<DType, at::ScalarType>> kTypes = {
    {DType::f32, at::kFloat}, {DType::f64, at::kDouble}, {DType::bf16, at::kBFloat16},
    {DType::f16, at::kHalf},  {DType::i32, at::kInt},    {DType::i64, at::kLong},
    {DType::u8, at::kByte}};
inline const std::vector<ReduceOp> kReductions = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min,
                                                  ReduceOp::max};

inline at::Tensor input(std::int64_t count, int rank, at::ScalarType type,
                        const at::Device& device) {
  const auto dtype = to_dtype(type);
  const Bytes bytes = make_input(dtype, static_cast<std::size_t>(count), rank);
  return as_tensor(bytes).clone().view(type).to(device);
}

// Returns the results of all operations on tensors of one device, in order.
inline std::vector<at::Tensor> every_operation(const Group& group, at::ScalarType type,
                                               std::int64_t count, ReduceOp op,
                                               const at::Device& device) {
  const int n = group.size(), rank = group.rank();
  const Shard part = shard_of(static_cast<std::size_t>(count), n, rank);
  const auto begin = static_cast<std::int64_t>(part.begin);
  const auto size = static_cast<std::int64_t>(part.size);
  const at::TensorOptions options = at::dtype(type).device(device);
  const Call call{op, Traffic::model, "case"};
  std::vector<at::Tensor> results;
  const auto keep = [&](const at::Tensor& tensor) { results.push_back(tensor.clone()); };

  at::Tensor x = input(count, rank, type, device), out = at::zeros({count}, options);
  group.all_reduce(out, x, call).wait();
  keep(out);
  group.all_reduce(x, call).wait();
  keep(x);
  x = input(count, rank, type, device);
  out = at::zeros({size}, options);
  group.reduce_scatter(out, x, call).wait();
  keep(out);
  group.reduce_scatter(x.narrow(0, begin, size), x, call).wait();
  keep(x.narrow(0, begin, size));
  at::Tensor whole = at::zeros({count}, options);
  group.all_gather(whole, out, call).wait();
  keep(whole);
  whole.zero_().narrow(0, begin, size).copy_(out);
  group.all_gather(whole, whole.narrow(0, begin, size), call).wait();
  keep(whole);
  x = input(count, rank, type, device);
  group.broadcast(x, n - 1, call).wait();
  keep(x);
  x = input(count, rank, type, device);
  group.reduce(x, n - 1, call).wait();
  keep(x);
  out = at::zeros({size * n}, options);
  group.all_to_all(out, input(count, rank, type, device), call).wait();
  keep(out);
  if (n > 1) {
    const int next = (rank + 1) % n, last = (rank + n - 1) % n;
    out = at::zeros({count}, options);
    const Work sent = group.send(input(count, rank, type, device), next, call);
    group.recv(out, last, call).wait();
    sent.wait();
    keep(out);
  }
  return results;
}

// The host's group gives the expected bits; `close` selects results whose rounding may differ.
inline void compare_with_host(const Group& device, const Group& host, bool close, std::int64_t most,
                              const std::vector<ReduceOp>& reductions = kReductions) {
  for (const auto& [dtype, type] : kTypes) {
    for (const ReduceOp op : reductions) {
      for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{5}, most}) {
        const auto want = every_operation(host, type, count, op, at::kCPU);
        const auto got = every_operation(device, type, count, op, kGpu);
        const bool rounds = close && at::isFloatingType(type) &&
                            (op == ReduceOp::sum || op == ReduceOp::avg) && device.size() > 1;
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::string what = std::string(name(dtype)) + " " + name(op) + " " +
                                   std::to_string(count) + " result " + std::to_string(i) +
                                   " rank " + std::to_string(host.rank());
          ASSERT_TRUE(got[i].is_cuda() && got[i].sizes() == want[i].sizes()) << what;
          if (!rounds) {
            expect_same(got[i], want[i], what);
            continue;
          }
          const double tolerance = dtype == DType::bf16 ? 0.02 : dtype == DType::f16 ? 0.003 : 1e-5;
          EXPECT_TRUE(at::allclose(got[i].cpu().to(at::kDouble), want[i].to(at::kDouble), tolerance,
                                   100 * tolerance))
              << what;
        }
      }
    }
  }
}

// Enqueues some tens of milliseconds of work on the current stream.
inline void be_slow() {
  const at::Tensor a = at::randn({4096, 4096}, at::device(kGpu));
  at::Tensor b = a;
  for (int i = 0; i < 20; ++i) b = at::mm(a, b).mul_(0.01);
}

// The input is computed late, on a non-default stream, and the result is used immediately.
inline void expect_order(const Group& group) {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const c10::StreamGuard side(guard.getStreamFromGlobalPool(kGpu, /*isHighPriority=*/false));
  const int n = group.size();
  be_slow();  // warm-up: allocates, so that later calls only keep the stream busy
  const at::Tensor x = at::zeros({1 << 20}, at::device(kGpu)), out = at::zeros_like(x);
  guard.synchronizeStream(side.current_stream());
  for (int round = 0; round < 3; ++round) {
    be_slow();
    x.fill_(group.rank() + 1);
    const Work work = group.all_reduce(out, x);
    work.wait();
    const at::Tensor twice = out * 2;
    x.fill_(-100);
    EXPECT_EQ(twice.min().item<float>(), n * (n + 1.0f)) << "round " << round;
    EXPECT_EQ(twice.max().item<float>(), n * (n + 1.0f)) << "round " << round;
    out.zero_();
  }
}

inline void expect_dropped_tensors_live(const Group& group) {
  std::vector<Work> works;
  std::vector<at::Tensor> outs;
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = at::full({1 << 18}, i + 1.0f, at::device(kGpu));
    outs.push_back(at::zeros_like(x));
    works.push_back(group.all_reduce(outs.back(), x));
  }
  std::vector<at::Tensor> noise;  // would reuse the memory of the inputs if they were freed
  for (int i = 0; i < 10; ++i) noise.push_back(at::full({1 << 18}, -7.0f, at::device(kGpu)));
  for (const Work& work : works) work.wait();
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const auto want = static_cast<float>(group.size()) * (static_cast<float>(i) + 1);
    EXPECT_EQ(outs[i].min().item<float>(), want);
    EXPECT_EQ(outs[i].max().item<float>(), want);
  }
}

}  // namespace tessera::comm::testing
