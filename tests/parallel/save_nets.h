#pragma once

// A small model that covers everything that a checkpoint must hold, and its training.

#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/parallel/save.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/zero/nets.h"

namespace tessera::save_test {

namespace fs = std::filesystem;
using zero::test::numbers;

using Folder = TemporaryFolder;

constexpr std::int64_t kGlobalBatch =
    12;  // over all ranks, so that every number of them computes the same

// Convolutions and batch norm, buffers of many types, a frozen parameter, one that is used in every
// other step. Batch norm gets the same numbers on every rank, so its result does not depend on N.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 5, bool channels_last = false)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 2)))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        head(register_module("head", torch::nn::Linear(width, 4))),
        sometimes(register_module("sometimes", torch::nn::Linear(width, 4))),
        frozen(register_parameter("frozen", at::zeros({3, 7}), /*requires_grad=*/false)),
        seen(register_buffer("seen", at::zeros({}, at::kLong))),
        mask(register_buffer("mask", at::zeros({9}, at::kBool))),
        bytes(register_buffer("bytes", at::zeros({2, 3}, at::kByte))),
        shorts(register_buffer("shorts", at::zeros({4}, at::kShort))),
        wide(register_buffer("wide", at::zeros({2}, at::kDouble))) {
    const at::NoGradGuard no_grad;
    std::uint64_t seed = 40;
    for (const auto& entry : named_parameters()) {
      entry.value().copy_(numbers(entry.value().sizes(), ++seed) / 2);
    }
    if (channels_last) {
      conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    // Batch norm and sums are in fp32 in every layout.
    const auto through = [](auto& layer, const at::Tensor& in) {
      return layer->forward(in.to(layer->weight.scalar_type())).to(at::kFloat);
    };
    const at::Tensor pooled = torch::tanh(through(conv, x)).mean({2, 3});
    const std::int64_t step = seen.item<std::int64_t>();
    {
      const at::NoGradGuard no_grad;
      seen.add_(1);
      mask[step % 9] = true;
      bytes.add_(3);
      shorts.sub_(1);
      wide.add_(0.1);
    }
    const at::Tensor probe =
        numbers({6, norm->options.num_features()}, static_cast<std::uint64_t>(step));
    at::Tensor y = through(head, pooled + norm->forward(probe).tanh().mean(0));
    if (step % 2 == 1) y = y + through(sometimes, pooled);
    return y + frozen.to(at::kFloat).sum();
  }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear head, sometimes;
  at::Tensor frozen, seen, mask, bytes, shorts, wide;
};
TORCH_MODULE(Net);
using Training = DataParallel<Net>;

inline void train(Training& training, int from, int to) {
  const comm::Group& group = training.group();
  const std::int64_t mine = kGlobalBatch / group.size();
  for (int step = from; step < to; ++step) {
    const at::Tensor x = numbers({kGlobalBatch, 3, 4, 4}, 900 + static_cast<std::uint64_t>(step));
    const at::Tensor own = x.narrow(0, group.rank() * mine, mine);
    const at::Tensor y = own.flatten(1).narrow(1, 0, 4) * 2;
    training.backward(torch::mse_loss(training(own), y));
    training.step();
  }
}

// Everything that training changes, of the whole model, on rank 0.
using Contents = std::map<std::string, at::Tensor>;
inline Contents contents(Training& training) {
  Contents all;
  for (auto& [name, value] : training.full_parameters()) all[name] = value.clone();
  for (const auto& buffer : training.model()->named_buffers()) {
    all[buffer.key()] = buffer.value().clone();
  }
  return all;
}

inline void expect_equal(const Contents& got, const Contents& wanted, const std::string& where) {
  ASSERT_EQ(got.size(), wanted.size()) << where;
  for (const auto& [name, value] : wanted) {
    EXPECT_TRUE(at::equal(got.at(name), value)) << where << ": " << name;
  }
}
inline void expect_close(const Contents& got, const Contents& wanted, const std::string& where) {
  ASSERT_EQ(got.size(), wanted.size()) << where;
  for (const auto& [name, value] : wanted) {
    EXPECT_TRUE(at::allclose(got.at(name).to(at::kDouble), value.to(at::kDouble), 1e-4, 1e-6))
        << where << ": " << name << "\n"
        << got.at(name) << "\nwanted\n"
        << value;
  }
}

// Runs body(group) on the given number of ranks, as threads. Returns the errors by rank.
template <typename F>
std::vector<std::string> on_ranks(int ranks, F&& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  comm::run_threads(ranks, [&](std::shared_ptr<comm::Backend> backend) {
    const comm::Group group(std::move(backend));
    try {
      body(group);
    } catch (const UsageError& error) {
      errors[static_cast<std::size_t>(group.rank())] = str("usage: ", error.what());
    } catch (const DataError& error) {
      errors[static_cast<std::size_t>(group.rank())] = str("data: ", error.what());
    } catch (const PeerError& error) {
      errors[static_cast<std::size_t>(group.rank())] = str("peer: ", error.what());
    }
  });
  return errors;
}
inline void expect_no_errors(const std::vector<std::string>& errors, const std::string& where) {
  for (const std::string& error : errors) EXPECT_EQ(error, "") << where;
}

// The optimizers whose state a checkpoint can hold.
struct Rule {
  std::string name;
  zero::Optimizer optimizer;
};
inline std::vector<Rule> rules() {
  return {{"AdamW", zero::AdamW{.lr = 0.02}},
          {"SGD", zero::SGD{.lr = 0.05, .momentum = 0.9}},
          {"torch Adam", zero::TorchOptimizer([](auto groups) {
             return std::make_unique<torch::optim::Adam>(std::move(groups),
                                                         torch::optim::AdamOptions(0.02));
           })}};
}
inline zero::Options options_of(const Rule& rule, int stage, const std::string& layout = "fp32") {
  zero::Options options;
  options.stage = stage;
  options.optimizer = rule.optimizer;
  options.layout = parse_state_layout(layout);
  options.policy = [](const std::string& name, const at::Tensor& param) {
    zero::ParamPolicy policy = zero::default_policy(name, param);
    policy.keep_fp32 = name.starts_with("norm.");
    return policy;
  };
  return options;
}

}  // namespace tessera::save_test
