// Compares an optimizer step on a GPU with the CPU kernels. Skipped without a GPU.

#include "tessera/kernels/cuda/optimizer.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/normals.h"
#include "tessera/kernels/optimizer.h"
#include "tests/kernels/gpu_step.h"

namespace tessera::kernels::cuda {
namespace {

using namespace test;

#define NEEDS_GPU_KERNELS()                                         \
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU found"; \
  if (!built()) GTEST_SKIP() << "built without CUDA kernels"

TEST(CudaOptimizer, StepMatchesTheCpu) {
  NEEDS_GPU_KERNELS();
  for (const Storage& how : kStorages) {
    for (std::size_t r = 0; r < kRules.size(); ++r) {
      const std::string what = str(c10::toString(how.param), how.master ? " with master, " : ", ",
                                   c10::toString(how.grad), ", rule ", r);
      const Flat start = random_flat(how, Model().total(), 5);
      Flat want = moved(start, at::kCPU);
      const double norm = run_on_cpu(kRules[r], how, want, 0.02, 3, 1.0);
      GpuStep gpu(how, start, kUpdatePiece, 0, 0.02, 3, 1.0, decay_of(kRules[r]));
      const StepResult result = gpu.run(kRules[r]);
      EXPECT_NEAR(result.norm, norm, 1e-10 * norm) << what;
      EXPECT_EQ(result.loss, 2.5) << what;
      EXPECT_EQ(result.skipped, 0) << what;
      EXPECT_EQ(result.steps, 1) << what;
      for (std::size_t i = 0; i < gpu.model.sizes.size(); ++i) {
        EXPECT_EQ(gpu.updates[static_cast<std::int64_t>(i)].item<std::int64_t>(),
                  3 + gpu.model.used[i]);
      }
      expect_near(gpu.flat.a, want.a, 4e-7, 0.01, what + ", first state");
      expect_near(gpu.flat.b, want.b, 4e-7, 0.01, what + ", second state");
      // 16-bit values may round the other way.
      const double last = how.param == at::kFloat ? 0 : how.param == at::kHalf ? 0x1p-10 : 0x1p-7;
      expect_near(gpu.flat.master, want.master, 1e-6, 0.1, what + ", master");
      expect_near(gpu.flat.param, want.param, 1e-6 + last, 0.1, what + ", param");
      // Nearly all are equal.
      const double same =
          (gpu.flat.param.cpu() == want.param).to(at::kDouble).mean().item<double>();
      EXPECT_GT(same, how.param == at::kFloat ? 0.5 : 0.999) << what;
    }
  }
}

TEST(CudaOptimizer, BitsDoNotDependOnPiecesOrAlignment) {
  NEEDS_GPU_KERNELS();
  for (const Storage& how : kStorages) {
    for (const rules::Rule& rule : kRules) {
      const Flat start = random_flat(how, Model().total(), 6);
      GpuStep whole(how, start, 1 << 20, 0, 0.02, 0, 1.0, decay_of(rule));
      const StepResult want = whole.run(rule);
      for (const std::int64_t cut : {std::int64_t{16}, std::int64_t{300}, std::int64_t{4096}}) {
        for (const std::int64_t skip : {0, 3, 16}) {
          GpuStep other(how, start, cut, skip, 0.02, 0, 1.0, decay_of(rule));
          const StepResult got = other.run(rule);
          EXPECT_EQ(got.norm, want.norm);
          expect_same_bits(other.flat, whole.flat, str("pieces of ", cut, ", behind ", skip));
        }
      }
    }
  }
}

TEST(CudaOptimizer, SkipsNonFiniteStepsAndAdjustsTheLossScale) {
  NEEDS_GPU_KERNELS();
  const rules::Rule rule = rules::AdamW{};
  const Storage how{at::kHalf, at::kHalf, true};
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Flat start = random_flat(how, Model().total(), 7);
    start.grad[1234] = bad;
    GpuStep gpu(how, start, kUpdatePiece, 0, 0.02, 0, 1.0, decay_of(rule));
    gpu.decision.scaled = true;
    gpu.state.copy_(on_gpu(std::vector<StepState>{{1024, 7, 5}}));
    const StepResult result = gpu.run(rule);
    EXPECT_EQ(result.skipped, 1);
    EXPECT_EQ(result.steps, 5);
    EXPECT_EQ(result.loss_scale, 1024);
    EXPECT_EQ(read<StepState>(gpu.state).loss_scale, 512);
    EXPECT_EQ(read<StepState>(gpu.state).good_steps, 0);
    EXPECT_EQ(gpu.updates.sum().item<std::int64_t>(), 0);
    expect_same_bits(gpu.flat, moved(start, at::kCPU), "skipped");
  }
  GpuStep gpu(how, random_flat(how, Model().total(), 7), kUpdatePiece, 0, 0.02, 0, 0, 0);
  gpu.decision.scaled = true;
  gpu.state.copy_(on_gpu(std::vector<StepState>{{1024, 0, 0}}));
  gpu.sum();
  const double norm = std::sqrt(read<StepSums>(gpu.sums).squares);
  for (int step = 0; step < kGoodSteps; ++step) {
    decide(rule, gpu.decision, nullptr);
  }
  EXPECT_EQ(read<StepState>(gpu.state).loss_scale, 2048);
  EXPECT_EQ(read<StepResult>(gpu.result).loss_scale, 1024);
  EXPECT_DOUBLE_EQ(read<StepResult>(gpu.result).norm, norm / 1024);
  gpu.sum(std::nan(""));
  decide(rule, gpu.decision, nullptr);
  EXPECT_EQ(read<StepResult>(gpu.result).skipped, 1);
}

TEST(CudaOptimizer, AddsSumsInRankOrder) {
  NEEDS_GPU_KERNELS();
  const std::size_t params = 11, stride = sums_bytes(params);
  const int ranks = 5;
  std::vector<std::uint8_t> rows(stride * ranks);
  StepSums want;
  std::vector<std::uint8_t> used(params);
  for (int r = 0; r < ranks; ++r) {
    const StepSums row{1.0 / (r + 3), std::sqrt(r + 0.1)};
    std::memcpy(rows.data() + r * stride, &row, sizeof(row));
    want.squares += row.squares;
    want.loss += row.loss;
    for (std::size_t i = 0; i < params; ++i) {
      rows[r * stride + sizeof(row) + i] = (i + r) % 4 == 0 && i != 3;
      used[i] |= rows[r * stride + sizeof(row) + i];
    }
  }
  const at::Tensor all = on_gpu(rows);
  const at::Tensor out =
      at::zeros({static_cast<std::int64_t>(stride)}, at::device(at::kCUDA).dtype(at::kByte));
  add_sums(as<void>(all), ranks, params, true, as<void>(out), nullptr);
  EXPECT_EQ(read<StepSums>(out).squares, want.squares);
  EXPECT_EQ(read<StepSums>(out).loss, want.loss);
  const at::Tensor host = out.cpu();
  for (std::size_t i = 0; i < params; ++i) {
    EXPECT_EQ(as<std::uint8_t>(host)[sizeof(StepSums) + i], used[i]) << i;
  }
  add_sums(as<void>(out), 1, params, false, as<void>(out), nullptr);
  EXPECT_EQ(read<StepSums>(out).squares, want.squares);
  EXPECT_EQ(read<StepSums>(out).loss, 0);
}

TEST(CudaOptimizer, UpdatesOneParameterWithHostNumbers) {
  NEEDS_GPU_KERNELS();
  const std::int64_t n = 70001;
  for (const rules::Rule& rule : {rules::Rule(rules::Momentum{}), rules::Rule(rules::Descent{3}),
                                  rules::Rule(rules::AdamW{})}) {
    const Storage how{at::kFloat, at::kFloat, false};
    Flat want = random_flat(how, n, 8);
    const Flat gpu = moved(want, at::kCUDA);
    const rules::Step step{0.01, 0.1, 4, 0.7};
    ParamShard shard;
    shard.param = as<void>(want.param);
    shard.grad = as<void>(want.grad);
    shard.count = static_cast<std::size_t>(n);
    kernels::update(rule, step, shard, as<float>(want.a), as<float>(want.b));
    UpdatePiece piece{as<void>(gpu.grad),
                      as<float>(gpu.a),
                      as<float>(gpu.b),
                      nullptr,
                      as<void>(gpu.param),
                      0,
                      static_cast<std::uint32_t>(n),
                      0};
    update(rule, step, {}, piece, 0, nullptr);
    expect_near(gpu.param, want.param, 1e-6, 0.1, "param");
    expect_near(gpu.a, want.a, 4e-7, 0.01, "first state");
  }
}

// Prints the throughput: --gtest_also_run_disabled_tests --gtest_filter='*Speed'.
TEST(CudaOptimizer, DISABLED_Speed) {
  NEEDS_GPU_KERNELS();
  const std::int64_t n = std::int64_t{1} << 30;
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(c10::Device(c10::kCUDA, 0));
  const auto milliseconds = [&](const std::function<void()>& work) {
    work();
    c10::Event begin(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    for (int i = 0; i < 5; ++i) work();
    end.record(stream);
    end.synchronize();
    return begin.elapsedTime(end) / 5;
  };
  const auto tell = [&](const std::string& what, double bytes, double ms) {
    std::printf("%-28s %6.2f ms for 2^30 elements, %5.2f TB/s\n", what.c_str(), ms,
                bytes * static_cast<double>(n) / ms / 1e9);
  };
  for (const Storage& how : kStorages) {
    const auto zeros = [&](at::ScalarType type) {
      return at::zeros({n}, at::device(at::kCUDA).dtype(type));
    };
    const Flat flat{zeros(how.param), how.master ? zeros(at::kFloat) : at::Tensor(),
                    zeros(how.grad), zeros(at::kFloat), zeros(at::kFloat)};
    std::vector<UpdatePiece> list;
    std::vector<SquarePiece> squares;
    for (std::int64_t at = 0; at < n; at += kUpdatePiece) {
      list.push_back({bytes_at(flat.grad, at), as<float>(flat.a) + at, as<float>(flat.b) + at,
                      how.master ? as<float>(flat.master) + at : nullptr, bytes_at(flat.param, at),
                      static_cast<std::uint64_t>(at), kUpdatePiece, 0});
      if (at % kSquarePiece == 0) {
        squares.push_back({bytes_at(flat.grad, at), kSquarePiece, gpu_type(how.grad)});
      }
    }
    const at::Tensor pieces = on_gpu(list), square_pieces = on_gpu(squares);
    ParamStep numbers;
    std::fill(std::begin(numbers.numbers), std::end(numbers.numbers), 0.5f);
    numbers.active = numbers.count = 1;
    const at::Tensor steps = on_gpu(std::vector<ParamStep>(1, numbers));
    const UpdateTypes types{gpu_type(how.param), gpu_type(how.grad), how.master, 1};
    const double param = static_cast<double>(c10::elementSize(how.param));
    const double grad = static_cast<double>(c10::elementSize(how.grad));
    const double bytes = 16 + grad + param + (how.master ? 8 : param);
    tell(str("adamw ", c10::toString(how.param), how.master ? "+master, " : ", ",
             c10::toString(how.grad)),
         bytes, milliseconds([&] {
           update(rules::AdamW{}, types, as<UpdatePiece>(pieces), list.size(), as<ParamStep>(steps),
                  stream.native_handle());
         }));
    const at::Tensor sums = zeros(at::kByte).narrow(0, 0, 64), used = at::zeros_like(sums);
    const at::Tensor partials = zeros(at::kByte);
    tell("  squares", grad, milliseconds([&] {
           sum_of_squares(as<SquarePiece>(square_pieces), squares.size(), as<double>(partials),
                          nullptr, as<std::uint8_t>(used), 1, as<void>(sums),
                          stream.native_handle());
         }));
  }
  const at::Tensor out = at::zeros({n}, at::device(at::kCUDA));
  const at::Tensor table = on_gpu(std::vector<tessera::Run>{{0, 0, n}});
  tell("normals", 4, milliseconds([&] {
         fill_normals({1, 2, 0.02f, 0, as<tessera::Run>(table), 1, 0, n}, as<float>(out),
                      stream.native_handle());
       }));
}

}  // namespace
}  // namespace tessera::kernels::cuda
