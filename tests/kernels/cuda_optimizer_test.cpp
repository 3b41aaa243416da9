// An optimizer's step on a GPU, against the CPU's kernels. Skipped without a GPU.

#include "tessera/kernels/cuda/optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
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

#include "tessera/core/normals.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/normals.h"
#include "tessera/kernels/norm.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::kernels::cuda {
namespace {

#define NEEDS_GPU_KERNELS()                                            \
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU"; \
  if (!built()) GTEST_SKIP() << "built without kernels for GPUs"

struct Storage {
  at::ScalarType param, grad;
  bool master;
};
const std::vector<Storage> kStorages = {
    {at::kFloat, at::kFloat, false},       {at::kFloat, at::kBFloat16, false},
    {at::kBFloat16, at::kBFloat16, true},  {at::kBFloat16, at::kFloat, true},
    {at::kHalf, at::kHalf, true},          {at::kHalf, at::kFloat, true},
    {at::kBFloat16, at::kBFloat16, false}, {at::kBFloat16, at::kFloat, false}};

const std::vector<rules::Rule> kRules = {
    rules::AdamW{.lr = 0.01, .weight_decay = 0.1}, rules::SGD{.lr = 0.1, .weight_decay = 0.01},
    rules::SGD{.lr = 0.1, .momentum = 0.9},
    rules::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    rules::Lion{.lr = 0.01}};

DType gpu_type(at::ScalarType type) {
  return type == at::kFloat ? DType::f32 : type == at::kBFloat16 ? DType::bf16 : DType::f16;
}
double decay_of(const rules::Rule& rule) {
  return std::visit(
      [](const auto& how) {
        if constexpr (requires { how.weight_decay; }) return how.weight_decay;
        return 0.0;
      },
      rule);
}

// Flat memory of all parameters, which lie side by side, `skip` elements behind its beginning.
struct Flat {
  at::Tensor param, master, grad, a, b;
};
Flat random_flat(const Storage& how, std::int64_t n, unsigned seed) {
  torch::manual_seed(seed);
  Flat flat;
  const at::Tensor values = at::randn({n});
  flat.param = values.to(how.param);
  flat.master = how.master ? values : at::Tensor();
  flat.grad = at::randn({n}).to(how.grad);
  flat.a = at::randn({n}) * 0.1;
  flat.b = (at::randn({n}) * 0.1).square();
  return flat;
}
Flat moved(const Flat& flat, c10::Device device, std::int64_t skip = 0) {
  const auto move = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const at::Tensor all = at::zeros({tensor.numel() + skip}, tensor.options().device(device));
    all.narrow(0, skip, tensor.numel()).copy_(tensor);
    return all.narrow(0, skip, tensor.numel());
  };
  return {move(flat.param), move(flat.master), move(flat.grad), move(flat.a), move(flat.b)};
}

template <class T>
at::Tensor on_gpu(const std::vector<T>& list) {
  return at::from_blob(const_cast<T*>(list.data()),
                       {static_cast<std::int64_t>(list.size() * sizeof(T))}, at::kByte)
      .to(at::kCUDA);
}
template <class T>
T* as(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}
template <class T>
T read(const at::Tensor& bytes) {
  T value;
  std::memcpy(&value, bytes.cpu().const_data_ptr(), sizeof(T));
  return value;
}
std::byte* bytes_at(const at::Tensor& tensor, std::int64_t at) {
  return as<std::byte>(tensor) + at * static_cast<std::int64_t>(tensor.element_size());
}

struct Model {
  std::vector<std::int64_t> sizes = {1, 7, 128, 1000, 5000, 70001, 40};
  std::vector<std::uint8_t> used = {1, 1, 0, 1, 1, 1, 1};
  std::int64_t total() const {
    std::int64_t n = 0;
    for (const std::int64_t size : sizes) n += size;
    return n;
  }
  std::string name(std::size_t i) const { return str("blocks.", i, ".weight"); }
  std::int64_t begin(std::size_t i) const { return static_cast<std::int64_t>(i) * 1000 + 5; }
};

// All the tables of a step, and what it leaves.
struct GpuStep {
  Model model;
  Flat flat;
  at::Tensor input, sums, state, updates, infos, steps, result, squares, partials, pieces;
  std::size_t square_count = 0, piece_count = 0;
  UpdateTypes types;
  Decision decision;

  GpuStep(const Storage& how, const Flat& from, std::int64_t cut, std::int64_t skip, double lr,
          std::int64_t done, double clip)
      : flat(moved(from, at::kCUDA, skip)) {
    std::vector<std::uint8_t> in(sizeof(StepInput) + model.sizes.size());
    const StepInput first{lr, 1, 1, 0};
    std::memcpy(in.data(), &first, sizeof(first));
    std::memcpy(in.data() + sizeof(first), model.used.data(), model.used.size());
    input = on_gpu(in);
    const at::TensorOptions bytes = at::device(at::kCUDA).dtype(at::kByte);
    sums = at::zeros({static_cast<std::int64_t>(sums_bytes(model.sizes.size()))}, bytes);
    state = on_gpu(std::vector<StepState>(1));
    updates = at::full({static_cast<std::int64_t>(model.sizes.size())}, done,
                       at::device(at::kCUDA).dtype(at::kLong));
    result = at::zeros({sizeof(StepResult)}, bytes);
    std::vector<ParamInfo> list;
    std::vector<SquarePiece> square_list;
    std::vector<UpdatePiece> piece_list;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < model.sizes.size(); ++i) {
      list.push_back({i % 2 == 0 ? 1.0 : 0.5, i % 3 == 0 ? 0 : 1, stream_of(model.name(i))});
      for (std::int64_t from_here = 0; from_here < model.sizes[i]; from_here += kSquarePiece) {
        square_list.push_back({bytes_at(flat.grad, at + from_here),
                               static_cast<std::uint32_t>(std::min<std::int64_t>(
                                   kSquarePiece, model.sizes[i] - from_here)),
                               gpu_type(how.grad)});
      }
      for (std::int64_t from_here = 0; from_here < model.sizes[i]; from_here += cut) {
        const auto shift = [&](const at::Tensor& t) {
          return t.defined() ? as<float>(t) + at + from_here : nullptr;
        };
        piece_list.push_back({bytes_at(flat.grad, at + from_here), shift(flat.a), shift(flat.b),
                              shift(flat.master), bytes_at(flat.param, at + from_here),
                              static_cast<std::uint64_t>(model.begin(i) + from_here),
                              static_cast<std::uint32_t>(std::min(cut, model.sizes[i] - from_here)),
                              static_cast<std::uint32_t>(i)});
      }
      at += model.sizes[i];
    }
    infos = on_gpu(list);
    squares = on_gpu(square_list);
    pieces = on_gpu(piece_list);
    square_count = square_list.size();
    piece_count = piece_list.size();
    partials = at::zeros({static_cast<std::int64_t>(square_count * 8)}, bytes);
    steps = at::zeros({static_cast<std::int64_t>(sizeof(ParamStep) * model.sizes.size())}, bytes);
    types = {gpu_type(how.param), gpu_type(how.grad), how.master, 11};
    decision = {as<StepInput>(input),
                as<void>(sums),
                model.sizes.size(),
                as<ParamInfo>(infos),
                clip,
                false,
                as<StepState>(state),
                as<std::int64_t>(updates),
                as<ParamStep>(steps),
                as<StepResult>(result)};
  }

  void sum(double loss_value = 2.5) {
    const at::Tensor loss = at::full({}, loss_value, at::device(at::kCUDA).dtype(at::kDouble));
    sum_of_squares(as<SquarePiece>(squares), square_count, as<double>(partials), as<double>(loss),
                   as<std::uint8_t>(input) + sizeof(StepInput), model.sizes.size(), as<void>(sums),
                   nullptr);
  }
  StepResult run(const rules::Rule& rule) {
    sum();
    decide(rule, decay_of(rule), decision, nullptr);
    update(rule, types, as<UpdatePiece>(pieces), piece_count, as<ParamStep>(steps), nullptr);
    return read<StepResult>(result);
  }
};

// The same with the CPU's kernels; f16 as fp32, for they do not know it.
double run_on_cpu(const rules::Rule& rule, const Storage& how, Flat& flat, double lr,
                  std::int64_t done, double clip) {
  const Model model;
  double squares = 0;
  std::int64_t at = 0;
  const at::Tensor grad =
      flat.grad.scalar_type() == at::kHalf ? flat.grad.to(at::kFloat) : flat.grad;
  const Type grad_type = grad.scalar_type() == at::kFloat ? Type::f32 : Type::bf16;
  for (const std::int64_t size : model.sizes) {
    squares +=
        kernels::sum_of_squares(bytes_at(grad, at), grad_type, static_cast<std::size_t>(size));
    at += size;
  }
  const double norm = std::sqrt(squares), factor = std::min(1.0, clip / (norm + 1e-6));
  at = 0;
  for (std::size_t i = 0; i < model.sizes.size(); ++i) {
    const std::int64_t size = model.sizes[i];
    const rules::Step step{lr * (i % 2 == 0 ? 1.0 : 0.5), i % 3 == 0 ? 0 : decay_of(rule), done + 1,
                           factor};
    const bool half = how.param == at::kHalf;
    ParamShard shard;
    shard.param = half ? bytes_at(flat.master, at) : bytes_at(flat.param, at);
    shard.param_type = half || how.param == at::kFloat ? Type::f32 : Type::bf16;
    shard.master = how.master && !half ? as<float>(flat.master) + at : nullptr;
    shard.grad = bytes_at(grad, at);
    shard.grad_type = grad_type;
    shard.count = static_cast<std::size_t>(size);
    shard.begin = static_cast<std::uint64_t>(model.begin(i));
    shard.stream = stream_of(model.name(i));
    shard.seed = 11;
    if (model.used[i] != 0) {
      kernels::update(rule, step, shard, as<float>(flat.a) + at, as<float>(flat.b) + at);
    }
    if (half && model.used[i] != 0) {
      flat.param.narrow(0, at, size).copy_(flat.master.narrow(0, at, size));
    }
    at += size;
  }
  return norm;
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double relative, double unit,
                 const std::string& what) {
  if (!want.defined()) return;
  const at::Tensor x = got.cpu().to(at::kDouble), y = want.to(at::kDouble);
  const at::Tensor off = (x - y).abs() / y.abs().clamp_min(unit);
  EXPECT_LE(off.max().item<double>(), relative) << what;
}

void expect_same_bits(const Flat& got, const Flat& want, const std::string& what) {
  const auto same = [&](const at::Tensor& x, const at::Tensor& y, const char* name) {
    if (!y.defined()) return;
    EXPECT_TRUE(at::equal(x.cpu(), y.cpu())) << what << ": " << name;
  };
  same(got.param, want.param, "param");
  same(got.master, want.master, "master");
  same(got.a, want.a, "first state");
  same(got.b, want.b, "second state");
}

TEST(CudaOptimizer, AStepIsThatOfTheCpu) {
  NEEDS_GPU_KERNELS();
  for (const Storage& how : kStorages) {
    for (std::size_t r = 0; r < kRules.size(); ++r) {
      const std::string what = str(c10::toString(how.param), how.master ? " with master, " : ", ",
                                   c10::toString(how.grad), ", rule ", r);
      const Flat start = random_flat(how, Model().total(), 5);
      Flat want = moved(start, at::kCPU);
      const double norm = run_on_cpu(kRules[r], how, want, 0.02, 3, 1.0);
      GpuStep gpu(how, start, kUpdatePiece, 0, 0.02, 3, 1.0);
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
      // 16 bits may be rounded the other way.
      const double last = how.param == at::kFloat ? 0 : how.param == at::kHalf ? 0x1p-10 : 0x1p-7;
      expect_near(gpu.flat.master, want.master, 1e-6, 0.1, what + ", master");
      expect_near(gpu.flat.param, want.param, 1e-6 + last, 0.1, what + ", param");
      // Nearly all of them are not.
      const double same =
          (gpu.flat.param.cpu() == want.param).to(at::kDouble).mean().item<double>();
      EXPECT_GT(same, how.param == at::kFloat ? 0.5 : 0.999) << what;
    }
  }
}

TEST(CudaOptimizer, HowItIsCutAndWhereItLiesChangesNoBit) {
  NEEDS_GPU_KERNELS();
  for (const Storage& how : kStorages) {
    for (const rules::Rule& rule : kRules) {
      const Flat start = random_flat(how, Model().total(), 6);
      GpuStep whole(how, start, 1 << 20, 0, 0.02, 0, 1.0);
      const StepResult want = whole.run(rule);
      for (const std::int64_t cut : {std::int64_t{16}, std::int64_t{300}, std::int64_t{4096}}) {
        for (const std::int64_t skip : {0, 3, 16}) {
          GpuStep other(how, start, cut, skip, 0.02, 0, 1.0);
          const StepResult got = other.run(rule);
          EXPECT_EQ(got.norm, want.norm);
          expect_same_bits(other.flat, whole.flat, str("pieces of ", cut, ", behind ", skip));
        }
      }
    }
  }
}

TEST(CudaOptimizer, WhatIsNotFiniteIsSkippedAndTheScaleFollows) {
  NEEDS_GPU_KERNELS();
  const rules::Rule rule = rules::AdamW{};
  const Storage how{at::kHalf, at::kHalf, true};
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Flat start = random_flat(how, Model().total(), 7);
    start.grad[1234] = bad;
    GpuStep gpu(how, start, kUpdatePiece, 0, 0.02, 0, 1.0);
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
  GpuStep gpu(how, random_flat(how, Model().total(), 7), kUpdatePiece, 0, 0.02, 0, 0);
  gpu.decision.scaled = true;
  gpu.state.copy_(on_gpu(std::vector<StepState>{{1024, 0, 0}}));
  gpu.sum();
  const double norm = std::sqrt(read<StepSums>(gpu.sums).squares);
  for (int step = 0; step < kGoodSteps; ++step) {
    decide(rule, 0, gpu.decision, nullptr);
  }
  EXPECT_EQ(read<StepState>(gpu.state).loss_scale, 2048);
  EXPECT_EQ(read<StepResult>(gpu.result).loss_scale, 1024);
  EXPECT_DOUBLE_EQ(read<StepResult>(gpu.result).norm, norm / 1024);
  gpu.sum(std::nan(""));
  decide(rule, 0, gpu.decision, nullptr);
  EXPECT_EQ(read<StepResult>(gpu.result).skipped, 1);
}

TEST(CudaOptimizer, SumsOfRanksAreAddedInOrder) {
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

TEST(CudaOptimizer, OneParameterWithTheHostsNumbers) {
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

// Prints how fast it is: --gtest_also_run_disabled_tests --gtest_filter='*Speed'.
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
