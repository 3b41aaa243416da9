#pragma once

// Optimizer step on a GPU, on flat memory with any storage, and its reference on the CPU.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/kernels/cuda/optimizer.h"
#include "tessera/kernels/optimizer.h"

namespace tessera::kernels::cuda::test {

struct Storage {
  at::ScalarType param, grad;
  bool master;
};
inline const std::vector<Storage> kStorages = {
    {at::kFloat, at::kFloat, false},       {at::kFloat, at::kBFloat16, false},
    {at::kBFloat16, at::kBFloat16, true},  {at::kBFloat16, at::kFloat, true},
    {at::kHalf, at::kHalf, true},          {at::kHalf, at::kFloat, true},
    {at::kBFloat16, at::kBFloat16, false}, {at::kBFloat16, at::kFloat, false}};

inline const std::vector<rules::Rule> kRules = {
    rules::AdamW{.lr = 0.01, .weight_decay = 0.1}, rules::SGD{.lr = 0.1, .weight_decay = 0.01},
    rules::SGD{.lr = 0.1, .momentum = 0.9},
    rules::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
    rules::Lion{.lr = 0.01}};

inline DType gpu_type(at::ScalarType type) {
  return type == at::kFloat ? DType::f32 : type == at::kBFloat16 ? DType::bf16 : DType::f16;
}
inline double decay_of(const rules::Rule& rule) {
  return std::visit(
      [](const auto& how) {
        if constexpr (requires { how.weight_decay; }) return how.weight_decay;
        return 0.0;
      },
      rule);
}

// Flat memory of all parameters, concatenated, starting `skip` elements after its beginning.
struct Flat {
  at::Tensor param, master, grad, a, b;
};
inline Flat random_flat(const Storage& how, std::int64_t n, unsigned seed) {
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
inline Flat moved(const Flat& flat, c10::Device device, std::int64_t skip = 0) {
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
inline std::byte* bytes_at(const at::Tensor& tensor, std::int64_t at) {
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

// Tables and results of one step.
struct GpuStep {
  Model model;
  Flat flat;
  at::Tensor input, sums, state, updates, infos, steps, result, squares, partials, pieces;
  std::size_t square_count = 0, piece_count = 0;
  UpdateTypes types;
  Decision decision;

  GpuStep(const Storage& how, const Flat& from, std::int64_t cut, std::int64_t skip, double lr,
          std::int64_t done, double clip, double decay)
      : flat(moved(from, at::kCUDA, skip)) {
    std::vector<std::uint8_t> in(sizeof(StepInput) + model.sizes.size());
    const StepInput first{lr, clip, decay, 1, 1, 0};
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
    decide(rule, decision, nullptr);
    update(rule, types, as<UpdatePiece>(pieces), piece_count, as<ParamStep>(steps), nullptr);
    return read<StepResult>(result);
  }
};

// Same step with the CPU kernels; f16 is stored as fp32, because they do not support it.
inline double run_on_cpu(const rules::Rule& rule, const Storage& how, Flat& flat, double lr,
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

inline void expect_near(const at::Tensor& got, const at::Tensor& want, double relative, double unit,
                        const std::string& what) {
  if (!want.defined()) return;
  const at::Tensor x = got.cpu().to(at::kDouble), y = want.to(at::kDouble);
  const at::Tensor off = (x - y).abs() / y.abs().clamp_min(unit);
  EXPECT_LE(off.max().item<double>(), relative) << what;
}

inline void expect_same_bits(const Flat& got, const Flat& want, const std::string& what) {
  const auto same = [&](const at::Tensor& x, const at::Tensor& y, const char* name) {
    if (!y.defined()) return;
    EXPECT_TRUE(at::equal(x.cpu(), y.cpu())) << what << ": " << name;
  };
  same(got.param, want.param, "param");
  same(got.master, want.master, "master");
  same(got.a, want.a, "first state");
  same(got.b, want.b, "second state");
}

}  // namespace tessera::kernels::cuda::test
