// Unusual uses of the engine: shared modules, failures, missing calls.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/shard.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

// A child at two positions of a Sequential is one unit.
TEST(Features, SequentialMayHoldAChildTwice) {
  std::vector<std::uint64_t> hashes;
  for (int stage = 0; stage < 4; ++stage) {
    for (const Gather gather : {Gather::automatic, Gather::copy}) {
      over(2, [&](const comm::Group& group) {
        torch::nn::Linear shared(4, 4);
        torch::nn::Sequential net(shared, torch::nn::Tanh(), shared);
        const at::NoGradGuard no_grad;
        for (const at::Tensor& p : net->parameters()) p.copy_(numbers(p.sizes(), 5));
        const at::AutoGradMode grad(true);
        Options options;
        options.stage = stage;
        options.gather = gather;
        DataParallel train(net, group, options);
        for (int step = 0; step < 3; ++step) {
          train.backward(train(numbers({2, 4}, batch_seed(step, group.rank(), 0))).square().mean());
          train.step();
        }
        const std::uint64_t hash = train.params_hash();
        if (group.rank() == 0) hashes.push_back(hash);
      });
    }
  }
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]);
}

// Reading a freed parameter throws only with LibTorch 2.13 or newer; before, it reads a null
// pointer. See [Note: reading a resharded unit] in zero/storage.h.
constexpr bool kFreeUnitsAreMarked = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13;

TEST(Features, RejectsForwardOutsideTheEngine) {
  if (!kFreeUnitsAreMarked) {
    GTEST_SKIP() << "LibTorch " << TORCH_VERSION << " cannot unmark a storage; 2.13 can";
  }
  for (const int stage : {1, 2, 3}) {
    for (const Gather gather : {Gather::alias, Gather::copy}) {
      over(2, [&](const comm::Group& group) {
        auto net = std::make_shared<Tied>();
        Options options;
        options.stage = stage;
        options.gather = stage == 3 ? gather : Gather::automatic;
        Engine engine(net, group, options);
        engine.backward(forward_loss(engine, *net, net->batch(1)));
        engine.step();
        EXPECT_THROW(net->loss(net->batch(1)), std::exception);
      });
    }
  }
}

TEST(Features, ReadingAParameterOfAReshardedUnitThrows) {
  if (!kFreeUnitsAreMarked) {
    GTEST_SKIP() << "LibTorch " << TORCH_VERSION << " cannot unmark a storage; 2.13 can";
  }
  for (const Gather gather : {Gather::alias, Gather::copy}) {
    over(2, [&](const comm::Group& group) {
      auto net = std::make_shared<Tied>();
      at::Tensor weight = net->embed->weight;
      {
        Options options;
        options.stage = 3;
        options.gather = gather;
        Engine engine(net, group, options);
        EXPECT_THROW(weight.sum(), c10::Error);
        EXPECT_EQ(engine.full_parameters().front().second.sizes(), weight.sizes());
      }
      EXPECT_THROW(weight.sum(), c10::Error);
    });
  }
}

// Error of the ranks if rank 1 has another model than rank 0.
std::vector<std::string> told_of_other_model(
    const std::function<void(torch::nn::Sequential)>& fill,
    const std::function<void(torch::nn::Sequential)>& other, int stage) {
  std::vector<std::string> message(3);
  over(3, [&](const comm::Group& group) {
    torch::nn::Sequential net;
    (group.rank() == 1 ? other : fill)(net);
    Options options;
    options.stage = stage;
    try {
      Engine(net.ptr(), group, options);
    } catch (const UsageError& error) {
      message[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  return message;
}

TEST(Features, NamesModelsThatDifferBetweenRanks) {
  using torch::nn::Linear;
  const auto plain = [](torch::nn::Sequential net) {
    net->push_back("a", Linear(2, 3));
    net->push_back("b", Linear(3, 4));
  };
  struct Variant {
    std::string there, here;
    std::function<void(torch::nn::Sequential)> fill;
  };
  const std::vector<Variant> variants = {
      {"parameter \"b.weight\" [5, 3] Float", "parameter \"b.weight\" [4, 3] Float",
       [](torch::nn::Sequential net) {
         net->push_back("a", Linear(2, 3));
         net->push_back("b", Linear(3, 5));
       }},
      {"parameter \"c.weight\" [4, 3] Float", "parameter \"b.weight\" [4, 3] Float",
       [](torch::nn::Sequential net) {
         net->push_back("a", Linear(2, 3));
         net->push_back("c", Linear(3, 4));
       }},
      {"parameter \"a.weight\" [3, 2] Double", "parameter \"a.weight\" [3, 2] Float",
       [&](torch::nn::Sequential net) {
         plain(net);
         net->to(at::kDouble);
       }},
      {"frozen parameter \"a.bias\" [3] Float", "parameter \"a.bias\" [3] Float",
       [&](torch::nn::Sequential net) {
         plain(net);
         net->parameters()[1].set_requires_grad(false);
       }},
      {"parameter \"b.weight\" [4, 3] Float with strides [1, 4]",
       "parameter \"b.weight\" [4, 3] Float",
       [&](torch::nn::Sequential net) {
         plain(net);
         net->parameters()[2].set_data(torch::ones({3, 4}).t());
       }},
      {"parameter \"c.weight\" [1, 4] Float", "nothing",
       [&](torch::nn::Sequential net) {
         plain(net);
         net->push_back("c", Linear(4, 1));
       }},
  };
  for (const int stage : {0, 3}) {
    for (const Variant& variant : variants) {
      for (const std::string& message : told_of_other_model(plain, variant.fill, stage)) {
        EXPECT_NE(message.find("different models"), std::string::npos) << message;
        EXPECT_NE(message.find("rank 1 "), std::string::npos) << message;
        EXPECT_NE(message.find(" has " + variant.there + " where"), std::string::npos) << message;
        EXPECT_NE(message.find(" rank 0 has " + variant.here), std::string::npos) << message;
      }
    }
    for (const std::string& message : told_of_other_model(plain, plain, stage))
      EXPECT_EQ(message, "");
  }
}

TEST(Features, RejectsAParameterOnAnotherDeviceByName) {
  struct Split : torch::nn::Module {
    Split() {
      register_parameter("here", torch::zeros({3}));
      register_parameter("there", torch::empty({4}, at::device(at::kMeta)));
    }
  };
  try {
    Engine(std::make_shared<Split>(), comm::Group());
    ADD_FAILURE() << "was accepted";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("\"there\" is on meta"), std::string::npos) << message;
    EXPECT_NE(message.find("\"here\" is on cpu"), std::string::npos) << message;
  }
}

// Small models have many buckets, too, and large models have no bucket above 25 MB.
TEST(Features, BucketSizeDependsOnTheModel) {
  EXPECT_EQ(default_bucket_bytes(0), 256 << 10);
  EXPECT_EQ(default_bucket_bytes(16 << 20), 1 << 20);
  EXPECT_EQ(default_bucket_bytes(std::int64_t{1} << 40), 25'000'000);
  torch::nn::Sequential net;
  for (int i = 0; i < 32; ++i) net->push_back(torch::nn::Linear(256, 256));  // of 257 KiB
  const Engine engine(net.ptr(), comm::Group());
  const std::int64_t all = 32 * 257 * 256 * 4;
  std::int64_t sum = 0;
  for (const BucketInfo& bucket : engine.buckets()) {
    EXPECT_LE(bucket.bytes, all / 16 + 257 * 256 * 4);
    sum += bucket.bytes;
  }
  EXPECT_EQ(sum, all);
  EXPECT_NE(engine.describe().find("buckets of"), std::string::npos) << engine.describe();
}

struct NoHook final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable&) override {}
};

// A model that an engine rejected is unchanged.
TEST(Features, RejectedModelIsUnchanged) {
  struct OwnImpl : torch::nn::Module {
    OwnImpl() : weight(register_parameter("weight", at::ones({3}))) {}
    at::Tensor forward(at::Tensor x) { return x * weight; }
    at::Tensor weight;
  };
  auto own = std::make_shared<OwnImpl>();
  torch::nn::Sequential net(own);
  torch::autograd::impl::set_post_acc_grad_hooks(own->weight, std::make_unique<NoHook>());
  const std::string message = error_of([&] { Engine(net.ptr(), comm::Group()); });
  EXPECT_NE(message.find("\"0.weight\" has a post-accumulate hook"), std::string::npos) << message;
  EXPECT_EQ(&net->at<OwnImpl>(0), own.get());
  torch::autograd::impl::set_post_acc_grad_hooks(own->weight, nullptr);
  Engine engine(net.ptr(), comm::Group());
  EXPECT_THROW(engine.begin({.micro_batches = -1}), UsageError);
  EXPECT_NO_THROW(engine.begin({.micro_batches = 1}));
  engine.discard();
}

TEST(Features, RejectsASecondEngineForAModel) {
  auto net = std::make_shared<Mlp>();
  {
    const Engine first(net, comm::Group());
    EXPECT_THROW(Engine(net, comm::Group()), UsageError);
  }
  EXPECT_NO_THROW(Engine(net, comm::Group()));
}

// After a backward that threw on all ranks, discard() undoes it completely.
TEST(Features, FailedBackwardCanBeDiscarded) {
  for (int stage = 0; stage < 4; ++stage) {
    std::vector<std::uint64_t> hashes;
    for (const bool fail : {false, true}) {
      over(2, [&](const comm::Group& group) {
        auto net = std::make_shared<Tied>();
        net->initialize(7);
        Options options;
        options.stage = stage;
        options.micro_batches = 2;
        options.bucket_bytes = 100;
        Engine engine(net, group, options);
        const auto pass = [&](std::uint64_t seed) {
          engine.backward(forward_loss(engine, *net, net->batch(seed)));
        };
        if (fail) {
          pass(11);
          struct Broken {};
          net->embed->weight.register_hook([](at::Tensor) { throw Broken(); });
          EXPECT_THROW(pass(12), Broken);
          net->embed->weight.remove_hook(0);
          EXPECT_THROW(pass(12), UsageError);
          EXPECT_THROW(engine.step(), UsageError);
          engine.discard();
        }
        for (std::uint64_t step = 0; step < 3; ++step) {
          pass(20 + step);
          pass(30 + step);
          engine.step();
        }
        const std::uint64_t hash = engine.params_hash();
        if (group.rank() == 0) hashes.push_back(hash);
      });
    }
    EXPECT_EQ(hashes[0], hashes[1]) << "stage " << stage;
  }
}

TEST(Features, TwoForwardsMayShareABackward) {
  for (const auto mode : {nn::Recompute::none, nn::Recompute::full}) {
    std::vector<std::uint64_t> hashes;
    for (int stage = 0; stage < 4; ++stage) {
      over(2, [&](const comm::Group& group) {
        auto net = std::make_shared<Tied>();
        net->initialize(7);
        Options options;
        options.stage = stage;
        options.layout = parse_state_layout("bf16-fp32grad");
        options.bucket_bytes = 100;
        Engine engine(net, group, options);
        nn::set_recompute(*net, mode);
        for (std::uint64_t step = 0; step < 2; ++step) {
          const at::Tensor one = forward_loss(engine, *net, net->batch(40 + step));
          const at::Tensor two = forward_loss(engine, *net, net->batch(50 + step));
          engine.backward(one + two);
          engine.step();
        }
        const std::uint64_t hash = engine.params_hash();
        if (group.rank() == 0) hashes.push_back(hash);
      });
    }
    for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]) << nn::name(mode);
  }
}

// As in torch, the age of a parameter's moments is its own number of updates.
TEST(Features, ParametersUsedLateCountTheirOwnUpdates) {
  struct Late : torch::nn::Module {
    Late()
        : a(register_parameter("a", at::ones({4, 4}))),
          b(register_parameter("b", at::ones({4, 4}))) {}
    at::Tensor loss(int step) {
      const at::Tensor x = a * (step + 1);
      return (step < 5 ? x : x + b).sin().mean();
    }
    at::Tensor a, b;
  };
  Late alone;
  torch::optim::AdamW adamw(alone.parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.01));
  auto net = std::make_shared<Late>();
  Options options;
  options.stage = 2;
  options.optimizer = AdamW{.lr = 0.1, .weight_decay = 0.01};
  Engine engine(net, comm::Group(), options);
  for (int step = 0; step < 8; ++step) {
    adamw.zero_grad();
    alone.loss(step).backward();
    adamw.step();
    engine.backward(nn::observed(engine.root(), [&] { return net->loss(step); }));
    engine.step();
    engine.synchronize();
    EXPECT_TRUE(at::allclose(net->a, alone.a, 1e-5, 1e-6)) << step;
    EXPECT_TRUE(at::allclose(net->b, alone.b, 1e-5, 1e-6)) << step;
  }
}

// Norms and biases do not decay with any optimizer, and a rank may own no elements at all.
TEST(Features, PoliciesApplyToOptimizersOfTorch) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool torchs : {false, true}) {
    over(2, [&](const comm::Group& group) {
      torch::nn::Linear net(3, 1);
      const at::NoGradGuard no_grad;
      for (const at::Tensor& p : net->parameters()) p.copy_(numbers(p.sizes(), 3));
      const at::AutoGradMode grad(true);
      Options options;
      options.stage = 1;
      options.optimizer = AdamW{.lr = 0.1, .weight_decay = 0.5};
      if (torchs) {
        options.optimizer =
            TorchOptimizer([](std::vector<torch::optim::OptimizerParamGroup> groups) {
              return std::make_unique<torch::optim::AdamW>(
                  std::move(groups), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
            });
      }
      DataParallel train(net, group, options);
      for (int step = 0; step < 3; ++step) {
        train.backward(train(numbers({4, 3}, batch_seed(step, group.rank(), 0))).square().mean());
        train.step();
      }
      const auto params = train.full_parameters();
      if (group.rank() == 0) results.push_back({params[0].second, params[1].second});
    });
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(results[0][i], results[1][i], 1e-5, 1e-6));
}

}  // namespace
}  // namespace tessera::zero::test
