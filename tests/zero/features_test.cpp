// Features of the engine besides the plain step.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/dry/backend.h"
#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/zero/plan.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

// Ranks with 5, 2 and 0 samples are weighted by their number of samples.
TEST(Features, WeighsMicroBatchesByTokens) {
  const auto samples = [](int rank) { return rank == 0 ? 5 : rank == 1 ? 2 : 0; };
  const auto data = [](int rank, int count) {
    const at::Tensor x = numbers({count, 5}, 40 + static_cast<std::uint64_t>(rank));
    return Batch{x, (x.narrow(1, 0, 3) * 2).sin()};
  };
  const auto sum_of_losses = [](Mlp& net, const Batch& batch) {
    return at::mse_loss(net.layers->forward(batch.x), batch.y, at::Reduction::Sum) / 3;
  };
  // One process, all samples at once.
  Mlp alone;
  alone.initialize(7);
  torch::optim::SGD sgd(alone.parameters(), 0.1);
  double want_loss = 0;
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    const at::Tensor loss =
        (sum_of_losses(alone, data(0, 5)) + sum_of_losses(alone, data(1, 2))) / 7;
    loss.backward();
    sgd.step();
    want_loss = loss.item<double>();
  }
  for (int stage = 0; stage < 4; ++stage) {
    over(3, [&](const comm::Group& group) {
      auto net = std::make_shared<Mlp>();
      net->initialize(7);
      Options options;
      options.stage = stage;
      options.optimizer = SGD{.lr = 0.1};
      Engine engine(net, group, options);
      const int count = samples(group.rank());
      StepInfo info;
      for (int step = 0; step < 3; ++step) {
        engine.begin({.micro_batches = 1, .tokens = static_cast<double>(count)});
        // At stage 3 a rank without data runs a batch with weight 0.
        if (count > 0 || stage == 3) {
          const Batch batch = data(group.rank(), std::max(count, 1));
          engine.backward(nn::observed(engine.root(), [&] { return sum_of_losses(*net, batch); }) *
                          (count > 0 ? 1 : 0));
        }
        info = engine.step();
      }
      EXPECT_NEAR(info.loss, want_loss, 1e-5);
      const auto params = engine.full_parameters();
      for (std::size_t i = 0; i < params.size(); ++i) {
        EXPECT_TRUE(at::allclose(params[i].second, alone.parameters()[i], 1e-5, 1e-6)) << stage;
      }
    });
  }
}

TEST(Features, NoSyncAccumulatesAndReducesOnce) {
  std::vector<std::uint64_t> hashes;
  std::vector<std::uint64_t> sent;
  for (int stage = 0; stage < 4; ++stage) {
    for (const bool scope : {false, true}) {
      over(2, [&](const comm::Group& group) {
        auto net = std::make_shared<Tied>();
        net->initialize(7);
        Options options;
        options.stage = stage;
        options.micro_batches = 3;
        if (!scope) options.reduce = ReducePolicy::last;
        Engine engine(net, group, options);
        const std::uint64_t before = group.traffic().sent_bytes;
        for (int k = 0; k < 3; ++k) {
          std::optional<Engine::NoSync> no_sync;
          if (scope && k < 2) no_sync.emplace(engine);
          engine.backward(forward_loss(engine, *net, net->batch(batch_seed(0, group.rank(), k))));
        }
        engine.step();
        engine.synchronize();
        if (group.rank() == 0) sent.push_back(group.traffic().sent_bytes - before);
        const std::uint64_t hash = engine.params_hash();
        if (group.rank() == 0) hashes.push_back(hash);
      });
    }
  }
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]);
  for (std::size_t i = 0; i < sent.size(); i += 2) EXPECT_EQ(sent[i], sent[i + 1]);
}

TEST(Features, SkipsUnusedParametersAndCountsMissingGradientsAsZero) {
  for (int stage = 0; stage < 4; ++stage) {
    Case run;
    run.net = "odd";
    run.ranks = 2;
    run.options.stage = stage;
    run.options.optimizer = AdamW{.lr = 0.1, .weight_decay = 0.5};
    const Result result = train(run);
    Odd fresh;
    fresh.initialize(7);
    for (const auto& [name, value] : result.params) {
      const at::Tensor start = fresh.named_parameters()[name].to(at::kFloat);
      if (value.numel() == 0) continue;
      const bool same = at::equal(value, start);
      EXPECT_EQ(same, name.find("unused") == 0 || name == "frozen") << name << " stage " << stage;
    }
  }
}

// Every rank throws, none hangs.
TEST(Features, ThrowsOnEveryRankIfRanksEnterDifferentUnits) {
  for (const Gather gather : {Gather::alias, Gather::copy}) {
    std::atomic<int> told = 0;
    over(3, [&](const comm::Group& group) {
      auto net = std::make_shared<Tied>();
      Options options;
      options.stage = 3;
      options.gather = gather;
      Engine engine(net, group, options);
      try {
        nn::observed(engine.root(), [&] {
          at::Tensor x = net->embed->forward(at::zeros({1, 2}, at::kLong));
          if (group.rank() == 1) std::swap(net->blocks[0], net->blocks[1]);
          for (auto& block : net->blocks) x = block(x);
          return x;
        });
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("block1"), std::string::npos) << error.what();
        ++told;
      }
    });
    EXPECT_EQ(told, 3);
  }
}

TEST(Features, RejectsBackwardOutsideTheEngine) {
  over(1, [](const comm::Group& group) {
    auto net = std::make_shared<Mlp>();
    Engine engine(net, group);
    EXPECT_THROW(net->loss(net->batch(1)).backward(), UsageError);
    EXPECT_THROW(engine.backward(at::zeros({2})), UsageError);
  });
}

TEST(Features, RejectsMoreBackwardsThanMicroBatches) {
  over(1, [](const comm::Group& group) {
    auto net = std::make_shared<Mlp>();
    Engine engine(net, group);
    engine.backward(forward_loss(engine, *net, net->batch(1)));
    EXPECT_THROW(engine.backward(forward_loss(engine, *net, net->batch(1))), UsageError);
    EXPECT_THROW(engine.begin({}), UsageError);
    engine.step();
    EXPECT_NO_THROW(engine.begin({}));
  });
}

TEST(Features, StopsOrSkipsOnNonFiniteGradients) {
  for (const int stage : {0, 2, 3}) {
    for (const OnNonFinite policy : {OnNonFinite::stop, OnNonFinite::skip}) {
      over(2, [&](const comm::Group& group) {
        auto net = std::make_shared<Mlp>();
        net->initialize(7);
        Options options;
        options.stage = stage;
        options.on_non_finite = policy;
        Engine engine(net, group, options);
        const std::uint64_t before = engine.params_hash();
        const auto pass = [&](double factor) {
          engine.backward(forward_loss(engine, *net, net->batch(3)) * factor);
          return engine.step();
        };
        // A value on one rank affects all ranks.
        const double bad = group.rank() == 1 ? std::nan("") : 1.0;
        if (policy == OnNonFinite::stop) {
          EXPECT_THROW(pass(bad), Error);
          return;
        }
        EXPECT_TRUE(pass(bad).skipped);
        EXPECT_EQ(engine.params_hash(), before);
        EXPECT_EQ(engine.steps(), 0);
        EXPECT_FALSE(pass(1).skipped);
        EXPECT_NE(engine.params_hash(), before);
      });
    }
  }
}

TEST(Features, NamesTheFirstNonFiniteGradientInTheOrderOfBackward) {
  for (const int stage : {0, 1, 2, 3}) {
    std::mutex mutex;
    std::map<int, std::string> named;  // by the index that a rank reports
    std::string wanted;
    over(2, [&](const comm::Group& group) {
      auto net = std::make_shared<Mlp>();
      net->initialize(7);
      // Of two such gradients, that of the later parameter comes first in backward.
      const auto params = net->named_parameters();
      for (const std::size_t bad : {std::size_t{0}, params.size() - 2}) {
        params[bad].value().register_hook([](const at::Tensor& g) { return g / 0.0; });
      }
      Options options;
      options.stage = stage;
      options.on_non_finite = OnNonFinite::skip;
      Engine engine(net, group, options);
      engine.backward(forward_loss(engine, *net, net->batch(3)));
      const StepInfo info = engine.step();
      EXPECT_TRUE(info.skipped);
      const std::lock_guard lock(mutex);
      named[info.non_finite_index] = info.non_finite_param;
      wanted = params[params.size() - 2].key();
    });
    ASSERT_FALSE(named.empty());
    EXPECT_EQ(named.rbegin()->second, wanted) << "stage " << stage;
  }
}

TEST(Features, DetectsDifferentInitialValues) {
  for (const int stage : {0, 1, 3}) {
    for (const Gather gather : {Gather::automatic, Gather::copy}) {
      for (const bool differ : {true, false}) {
        over(3, [&](const comm::Group& group) {
          auto net = std::make_shared<Mlp>();
          net->initialize(differ && group.rank() == 2 ? 8 : 7);
          Options options;
          options.stage = stage;
          options.gather = gather;
          options.broadcast_start = false;
          if (differ) {
            EXPECT_THROW(Engine(net, group, options), UsageError);
          } else {
            EXPECT_NO_THROW(Engine(net, group, options));
          }
        });
      }
    }
  }
}

TEST(Features, RejectsInvalidOptions) {
  const comm::Group alone;
  const auto refuse = [&](const std::function<void(Options&)>& change) {
    Options options;
    change(options);
    EXPECT_THROW(Engine(std::make_shared<Mlp>(), alone, options), UsageError);
  };
  refuse([](Options& o) { o.stage = 4; });
  refuse([](Options& o) { o.micro_batches = 0; });
  refuse([](Options& o) { o.bucket_bytes = -1; });
  refuse([](Options& o) { o.clip_norm = -1; });
  refuse([](Options& o) { o.layout = parse_state_layout("2,6,12"); });
  refuse([](Options& o) {
    o.layout = parse_state_layout("bf16-nomaster");
    o.optimizer = TorchOptimizer([](auto groups) {
      return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1));
    });
  });
}

TEST(Features, TrainsWithElementwiseOptimizersOfTorch) {
  const auto adagrad = [](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<torch::optim::Adagrad>(std::move(groups),
                                                   torch::optim::AdagradOptions(0.05));
  };
  for (const std::string layout : {"fp32", "bf16"}) {
    std::vector<Result> stages;
    for (int stage = 0; stage < 4; ++stage) {
      Case run;
      run.net = "tied";
      run.ranks = 3;
      run.options.stage = stage;
      run.options.layout = parse_state_layout(layout);
      run.options.optimizer = TorchOptimizer(adagrad);
      stages.push_back(train(run));
      EXPECT_EQ(stages.back().hash, stages[0].hash) << run.describe();
    }
  }
  // Our rules equal torch's, within rounding.
  Case run;
  run.net = "mlp";
  run.options.optimizer = AdamW{.lr = 0.01, .weight_decay = 0};
  const Result ours = train(run);
  run.options.optimizer = TorchOptimizer([](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<torch::optim::AdamW>(std::move(groups),
                                                 torch::optim::AdamWOptions(0.01).weight_decay(0));
  });
  EXPECT_LT(distance(ours, train(run)), 1e-5);
}

TEST(Features, DescribesTheCostOfAModelWithoutUnits) {
  Options options;
  options.stage = 3;
  auto net = std::make_shared<Conv>();
  const Engine engine(net, comm::Group(), options);
  EXPECT_NE(engine.describe().find("No units"), std::string::npos) << engine.describe();
  EXPECT_NE(engine.describe().find("1 bucket of 1.09 kB at most over 1 rank"), std::string::npos)
      << engine.describe();
}

// A unit used twice, and one inside another.
struct Inner : torch::nn::Module {
  Inner() : weight(register_parameter("weight", at::ones({4}) * 0.5)) {}
  at::Tensor forward(at::Tensor x) { return torch::tanh(x * weight); }
  at::Tensor weight;
};
struct Outer : torch::nn::Module {
  Outer()
      : inner(register_module("inner", nn::Unit<Inner>())),
        bias(register_parameter("bias", at::ones({4}) * 0.1)) {}
  at::Tensor forward(at::Tensor x) { return inner(x) + inner(x * 2) + bias; }
  nn::Unit<Inner> inner;
  at::Tensor bias;
};
struct Nested : torch::nn::Module {
  Nested() : outer(register_module("outer", nn::Unit<Outer>())) {}
  at::Tensor forward(at::Tensor x) { return outer(outer(x)); }
  nn::Unit<Outer> outer;
};

TEST(Features, UnitsMayBeNestedAndUsedTwice) {
  std::vector<std::uint64_t> hashes;
  for (int stage = 0; stage < 4; ++stage) {
    for (const auto mode : {nn::Recompute::none, nn::Recompute::full}) {
      for (const Gather gather : {Gather::automatic, Gather::copy}) {
        over(2, [&](const comm::Group& group) {
          auto net = std::make_shared<Nested>();
          Options options;
          options.stage = stage;
          options.gather = gather;
          options.bucket_bytes = 1;
          Engine engine(net, group, options);
          nn::set_recompute(*net, mode);
          for (int step = 0; step < 3; ++step) {
            const at::Tensor x = numbers({2, 4}, batch_seed(step, group.rank(), 0));
            engine.backward(nn::observed(
                engine.root(), [&](at::Tensor in) { return net->forward(in).square().mean(); }, x));
            engine.step();
          }
          const std::uint64_t hash = engine.params_hash();
          if (group.rank() == 0) hashes.push_back(hash);
        });
      }
    }
  }
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]);
}

// State memory equals the formula, plus the padding of the plan.
void check_state_memory(const comm::Group& group, const StateLayout& layout, int stage,
                        Gather gather) {
  const auto ledger = std::make_shared<memory::Ledger>("a rank");
  auto net = std::make_shared<Mlp>();
  net->layers->push_back(torch::nn::Linear(3, 4099));
  Options options;
  options.stage = stage;
  options.layout = layout;
  options.ledger = ledger;
  options.bucket_bytes = 1 << 10;
  options.gather = gather;
  const Engine engine(net, group, options);
  const double padded = static_cast<double>(engine.traveling_param_bytes()) / layout.param;
  const planner::StateBytes want = planner::state_bytes(layout, stage, padded, group.size());
  const memory::LedgerCounts got = ledger->counts();
  const double rounding = 4 * 64;  // the allocator counts in units of 64 bytes
  const auto text = str(group.size(), " ranks, ", layout.name, ", stage ", stage);
  EXPECT_NEAR(got[MemoryCategory::params].now, want.params, rounding) << text;
  EXPECT_NEAR(got[MemoryCategory::grads].now, want.grads, rounding) << text;
  EXPECT_NEAR(got[MemoryCategory::optimizer].now, want.optimizer, rounding) << text;
  // Padding is at most one alignment unit per rank and parameter.
  double elements = 0;
  for (const at::Tensor& p : net->parameters()) elements += static_cast<double>(p.numel());
  EXPECT_LE(padded - elements, 8.0 * group.size() * (kShardAlign + 1)) << text;
}

TEST(Memory, StateMatchesTheFormula) {
  memory::install();
  for (const StateLayout& layout : state_layouts()) {
    if (layout.fp16()) continue;  // on GPUs only
    for (int stage = 0; stage < 4; ++stage) {
      for (const int ranks : {1, 8, 64}) {
        const comm::Group group(comm::dry::make_backend(0, ranks, "dry"));
        check_state_memory(group, layout, stage, Gather::copy);
      }
      for (const int ranks : {2, 4}) {
        over(ranks, [&](const comm::Group& group) {
          check_state_memory(group, layout, stage, Gather::copy);
          if (stage == 3) check_state_memory(group, layout, stage, Gather::alias);
        });
      }
    }
  }
}

// Stage 2 never holds the full gradient: two buckets at most.
TEST(Memory, HoldsAtMostTwoBucketsInFlight) {
  memory::install();
  over(2, [](const comm::Group& group) {
    const auto ledger = std::make_shared<memory::Ledger>("a rank");
    const memory::OwnerScope owner(ledger);
    torch::nn::Sequential net;
    for (int i = 0; i < 16; ++i) net->push_back(torch::nn::Linear(64, 64));
    Options options;
    options.stage = 2;
    options.bucket_bytes = 64 * 64 * 4;
    Engine engine(net.ptr(), group, options);
    const std::int64_t bucket = 65 * 64 * 4 + 4096;
    EXPECT_LE(ledger->counts()[MemoryCategory::buffers].now, 2 * bucket);
    const at::Tensor x = at::ones({2, 64});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = nn::observed(
          engine.root(), [&](at::Tensor in) { return net->forward(in).square().mean(); }, x);
      ledger->reset_peak();
      const std::int64_t before = ledger->counts().total.now;
      engine.backward(loss);
      EXPECT_LE(ledger->counts().total.peak - before, 3 * bucket) << "the gradient has 16 buckets";
      engine.step();
    }
  });
}

}  // namespace
}  // namespace tessera::zero::test
