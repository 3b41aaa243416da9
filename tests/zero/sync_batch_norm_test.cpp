// Batch norm over ranks against torch's in one process with all samples.

#include "tessera/zero/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <map>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero {
namespace {

using test::numbers;
using test::over;

constexpr std::int64_t kChannels = 3;

std::vector<std::int64_t> shape(int dims, std::int64_t samples) {
  std::vector<std::int64_t> sizes = {samples, kChannels, 2, 3, 2};
  sizes.resize(static_cast<std::size_t>(dims));
  return sizes;
}

template <typename Norm>
at::Tensor alone(torch::nn::Module& module, const at::Tensor& x) {
  return module.as<Norm>()->forward(x);
}

at::Tensor alone(torch::nn::Module& module, const at::Tensor& x) {
  if (x.dim() <= 3) return alone<torch::nn::BatchNorm1dImpl>(module, x);
  if (x.dim() == 4) return alone<torch::nn::BatchNorm2dImpl>(module, x);
  return alone<torch::nn::BatchNorm3dImpl>(module, x);
}

std::shared_ptr<torch::nn::Module> batch_norm(int dims, const torch::nn::BatchNormOptions& how) {
  if (dims <= 3) return torch::nn::BatchNorm1d(how).ptr();
  if (dims == 4) return torch::nn::BatchNorm2d(how).ptr();
  return torch::nn::BatchNorm3d(how).ptr();
}

void start(torch::nn::Module& norm) {
  const at::NoGradGuard no_grad;
  std::uint64_t seed = 5;
  for (const at::Tensor& p : norm.parameters()) p.copy_(numbers(p.sizes(), ++seed) + 0.2);
}

struct Samples {
  int ranks = 1;
  std::vector<std::int64_t> of_ranks;
};

void compare(const Samples& samples, int dims, at::ScalarType type,
             const torch::nn::BatchNormOptions& how) {
  const std::string what =
      str(samples.ranks, " ranks, ", dims, " dims, ", c10::toString(type),
          how.affine() ? ", affine" : "", how.momentum() ? "" : ", cumulative");
  std::int64_t all = 0;
  for (const std::int64_t count : samples.of_ranks) all += count;
  // 16 bits: the reference computes in fp32 with the same inputs.
  const bool narrow = type == at::kBFloat16;
  const at::ScalarType exact = narrow ? at::kFloat : type;
  const auto reference = batch_norm(dims, how);
  start(*reference);
  reference->to(exact);
  std::vector<at::Tensor> xs, dys, ys, dxs;
  for (int step = 0; step < 3; ++step) {
    const auto seed = static_cast<std::uint64_t>(100 * step);
    xs.push_back((numbers(shape(dims, all), seed + 1) * 3 + 1).to(type));
    dys.push_back(numbers(shape(dims, all), seed + 2).to(type));
    const at::Tensor x = xs.back().to(exact).clone().requires_grad_();
    ys.push_back(alone(*reference, x));
    ys.back().backward(dys.back().to(exact));
    dxs.push_back(x.grad());
  }
  reference->eval();
  const at::Tensor of_eval = alone(*reference, xs[0].to(exact));
  const double near = type == at::kDouble ? 1e-10 : narrow ? 2e-2 : 2e-5;
  over(samples.ranks, [&](const comm::Group& group) {
    SyncBatchNorm norm(how, group);
    start(*norm);
    if (type == at::kDouble) norm->to(type);
    std::int64_t begin = 0;
    for (int r = 0; r < group.rank(); ++r) begin += samples.of_ranks[static_cast<std::size_t>(r)];
    const std::int64_t mine = samples.of_ranks[static_cast<std::size_t>(group.rank())];
    const auto own = [&](const at::Tensor& whole) { return whole.narrow(0, begin, mine); };
    for (std::size_t step = 0; step < 3; ++step) {
      const at::Tensor x = own(xs[step]).clone().requires_grad_();
      const at::Tensor y = norm->forward(x);
      y.backward(own(dys[step]));
      EXPECT_EQ(y.scalar_type(), type);
      EXPECT_TRUE(at::allclose(y.to(exact), own(ys[step]), near, near)) << what;
      EXPECT_TRUE(at::allclose(x.grad().to(exact), own(dxs[step]), near, near)) << what;
    }
    std::size_t i = 0;
    for (const auto& param : norm->named_parameters()) {
      at::Tensor grad = param.value().grad().clone();
      group.all_reduce(grad).wait();
      EXPECT_TRUE(at::allclose(grad.to(exact), reference->parameters()[i++].grad(), near, near))
          << what << " " << param.key();
    }
    ASSERT_EQ(norm->named_buffers().keys(), reference->named_buffers().keys());
    for (const auto& buffer : norm->named_buffers()) {
      EXPECT_TRUE(at::allclose(buffer.value().to(at::kDouble),
                               reference->named_buffers()[buffer.key()].to(at::kDouble), near,
                               near))
          << what << " " << buffer.key();
      // The same bits on all ranks.
      const at::Tensor first = buffer.value().to(at::kDouble).clone().view({-1});
      group.broadcast(first, 0).wait();
      EXPECT_TRUE(at::equal(first, buffer.value().to(at::kDouble).view({-1})));
    }
    norm->eval();
    EXPECT_TRUE(at::allclose(norm->forward(own(xs[0])).to(exact), own(of_eval), near, near))
        << what;
  });
}

TEST(SyncBatchNorm, EqualsOneProcessWithAllSamples) {
  const std::vector<Samples> all = {
      {1, {4}}, {2, {3, 3}}, {2, {5, 1}}, {3, {2, 0, 4}}, {4, {1, 2, 3, 4}}};
  for (const Samples& samples : all) {
    for (const int dims : {2, 3, 4, 5}) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
        compare(samples, dims, type, torch::nn::BatchNormOptions(kChannels));
      }
    }
    compare(samples, 4, at::kFloat, torch::nn::BatchNormOptions(kChannels).momentum(std::nullopt));
    compare(samples, 3, at::kFloat, torch::nn::BatchNormOptions(kChannels).affine(false));
    compare(samples, 2, at::kFloat, torch::nn::BatchNormOptions(kChannels).momentum(0.3).eps(1e-2));
  }
}

TEST(SyncBatchNorm, RejectsInputsWithoutStatistics) {
  over(2, [](const comm::Group& group) {
    SyncBatchNorm norm(kChannels, group);
    EXPECT_THROW(norm->forward(at::zeros({2, kChannels + 1})), UsageError);
    EXPECT_THROW(norm->forward(at::zeros({kChannels})), UsageError);
    // One sample on one of two ranks.
    EXPECT_THROW(norm->forward(at::zeros({group.rank() == 0 ? 1 : 0, kChannels})), UsageError);
  });
}

struct InnerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers = register_module(
      "layers",
      torch::nn::Sequential(torch::nn::Linear(4, kChannels), torch::nn::BatchNorm1d(kChannels)));
};
TORCH_MODULE(Inner);

TEST(SyncBatchNorm, ConvertReplacesNormsInSequentials) {
  const auto model = [] {
    return torch::nn::Sequential(Inner(), torch::nn::Linear(kChannels, 2),
                                 torch::nn::BatchNorm1d(2));
  };
  const auto fill = [](torch::nn::Module& module) {
    const at::NoGradGuard no_grad;
    std::uint64_t seed = 30;
    for (const at::Tensor& p : module.parameters()) p.copy_(numbers(p.sizes(), ++seed) + 0.3);
  };
  const at::Tensor x = numbers({6, 4}, 3);
  auto whole = model();
  fill(*whole);
  const at::Tensor want = whole->forward(x);
  over(3, [&](const comm::Group& group) {
    auto cut = model();
    fill(*cut);
    const auto names = cut->named_parameters().keys();
    EXPECT_EQ(convert_batch_norms(*cut, group), (std::vector<std::string>{"0.layers.1", "2"}));
    EXPECT_EQ(cut->named_parameters().keys(), names);
    const at::Tensor got = cut->forward(x.narrow(0, 2 * group.rank(), 2));
    EXPECT_TRUE(at::allclose(got, want.narrow(0, 2 * group.rank(), 2), 1e-5, 1e-5));
    for (const auto& buffer : cut->named_buffers()) {
      EXPECT_TRUE(at::allclose(buffer.value(), whole->named_buffers()[buffer.key()], 1e-5, 1e-5));
    }
    EXPECT_TRUE(convert_batch_norms(*cut, group).empty());
  });
}

struct HasAMember : torch::nn::Module {
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(2));
};

TEST(SyncBatchNorm, ConvertNamesNormsThatItCannotReplace) {
  torch::nn::Sequential model{torch::nn::BatchNorm1d(2)};
  model->register_module("mine", std::make_shared<HasAMember>());
  try {
    convert_batch_norms(*model, comm::Group());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("mine.norm"), std::string::npos) << error.what();
  }
  EXPECT_NE(model[0]->as<torch::nn::BatchNorm1d>(), nullptr);  // nothing was changed
}

// The engine sums the ranks' parts of the affine gradients.
TEST(SyncBatchNorm, TrainsInTheEngineLikeOneProcess) {
  const auto make = [](const comm::Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(4, kChannels), SyncBatchNorm(kChannels, group),
                              torch::nn::Linear(kChannels, 2));
    const at::NoGradGuard no_grad;
    std::uint64_t seed = 60;
    for (const at::Tensor& p : net->parameters()) p.copy_(numbers(p.sizes(), ++seed) + 0.1);
    return net;
  };
  const auto train = [&](const comm::Group& group, int stage, std::int64_t samples) {
    auto net = make(group);
    zero::Options options;
    options.stage = stage;
    options.optimizer = zero::SGD{.lr = 0.1};
    zero::DataParallel engine(net, group, options);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = numbers({6, 4}, static_cast<std::uint64_t>(step))
                               .narrow(0, samples * group.rank(), samples);
      engine.backward(torch::mse_loss(engine(x), x.narrow(1, 0, 2)));
      engine.step();
    }
    std::vector<at::Tensor> values;
    for (const auto& [name, value] : engine.full_parameters()) values.push_back(value.clone());
    for (const at::Tensor& buffer : net->buffers()) values.push_back(buffer.clone());
    return values;
  };
  const std::vector<at::Tensor> want = train(comm::Group(), 0, 6);
  for (int stage = 0; stage < 4; ++stage) {
    over(2, [&](const comm::Group& group) {
      const std::vector<at::Tensor> got = train(group, stage, 3);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::allclose(got[i], want[i], 1e-4, 1e-5)) << "stage " << stage << " " << i;
      }
    });
  }
}

// A user's buffer that counts the micro-batches of training.
struct BatchCounterImpl : torch::nn::Module {
  BatchCounterImpl() {
    linear = register_module("linear", torch::nn::Linear(kChannels, kChannels));
    batches = register_buffer("batches", torch::zeros({}, torch::kLong));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_training() && !nn::is_recomputing()) batches += 1;
    return linear(x);
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor batches;
};
TORCH_MODULE(BatchCounter);

TEST(SyncBatchNorm, CountsARecomputedBatchOnce) {
  const auto train = [](nn::Recompute mode) {
    torch::nn::Sequential net(torch::nn::Linear(4, kChannels),
                              SyncBatchNorm(kChannels, comm::Group()), BatchCounter(),
                              torch::nn::Linear(kChannels, 2));
    {
      const at::NoGradGuard no_grad;
      std::uint64_t seed = 60;
      for (const at::Tensor& p : net->parameters()) p.copy_(numbers(p.sizes(), ++seed) + 0.1);
    }
    zero::Options options;
    options.optimizer = zero::SGD{.lr = 0.1};
    zero::DataParallel engine(net, comm::Group(), options);
    nn::set_recompute(*net, mode);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = numbers({6, 4}, static_cast<std::uint64_t>(step));
      engine.backward(torch::mse_loss(engine(x), x.narrow(1, 0, 2)));
      engine.step();
    }
    std::map<std::string, at::Tensor> buffers;
    for (const auto& buffer : net->named_buffers()) buffers[buffer.key()] = buffer.value().clone();
    return buffers;
  };
  const auto want = train(nn::Recompute::none);
  EXPECT_EQ(want.at("1.num_batches_tracked").item<std::int64_t>(), 3);
  EXPECT_EQ(want.at("2.batches").item<std::int64_t>(), 3);
  for (const auto mode : {nn::Recompute::selective, nn::Recompute::full}) {
    for (const auto& [key, value] : train(mode)) {
      EXPECT_TRUE(at::equal(value, want.at(key))) << nn::name(mode) << " " << key;
    }
  }
}

}  // namespace
}  // namespace tessera::zero
