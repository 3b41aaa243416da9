// Settings of single steps, and whole gradients between backward and step.

#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

constexpr int kSteps = 5;

// Scale of a parameter's learning rate, independent of layers and of weight decay.
double scale_of(const std::string& param) {
  return param.find("layers.2") == 0 ? 0.5 : param.find("bias") != std::string::npos ? 2.0 : 1.0;
}

// Each setting alone, all at once, and none: a setting of one step must not affect the next.
StepOptions options_of(int step) {
  if (step == 1) return {.lr = 0.03, .clip_norm = 0.2, .weight_decay = 0.3, .lr_scale = scale_of};
  if (step == 2) return {.weight_decay = 0.5};
  if (step == 3) return {.lr = 0.004, .clip_norm = 0.0, .lr_scale = scale_of};
  return {};
}

constexpr double kLr = 0.01, kDecay = 0.1, kClip = 0.7;

struct Kind {
  std::string name;
  Optimizer optimizer;
  std::function<std::unique_ptr<torch::optim::Optimizer>(
      std::vector<torch::optim::OptimizerParamGroup>)>
      reference;
};

template <class O, class Options>
TorchOptimizer torch_of(const Options& options) {
  return [options](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<O>(std::move(groups), options);
  };
}

std::vector<Kind> kinds() {
  namespace optim = torch::optim;
  const auto adamw = torch_of<optim::AdamW>(optim::AdamWOptions(kLr).weight_decay(kDecay));
  const auto sgd = torch_of<optim::SGD>(optim::SGDOptions(kLr).momentum(0.9).weight_decay(kDecay));
  return {{"AdamW", AdamW{.lr = kLr, .weight_decay = kDecay}, adamw},
          {"SGD", SGD{.lr = kLr, .momentum = 0.9, .weight_decay = kDecay}, sgd},
          {"AdamW of torch::optim", adamw, adamw},
          {"SGD of torch::optim", sgd, sgd}};
}

template <class T>
bool set_decay(torch::optim::OptimizerOptions& options, double decay) {
  auto* const known = dynamic_cast<T*>(&options);
  if (known != nullptr) known->weight_decay(decay);
  return known != nullptr;
}

// One process with torch only: a group for each parameter, whose settings change with the step.
std::vector<at::Tensor> alone(const Kind& kind, int ranks, int micro_batches) {
  Mlp net;
  net.initialize(7);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::vector<std::string> names;
  for (const auto& item : net.named_parameters()) {
    groups.emplace_back(std::vector<at::Tensor>{item.value()});
    names.push_back(item.key());
  }
  const auto optimizer = kind.reference(std::move(groups));
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int r = 0; r < ranks; ++r) {
      for (int k = 0; k < micro_batches; ++k) {
        (net.loss(net.batch(batch_seed(step, r, k))) / (ranks * micro_batches)).backward();
      }
    }
    const StepOptions now = options_of(step);
    const double clip = now.clip_norm.value_or(kClip);
    if (clip > 0) torch::nn::utils::clip_grad_norm_(net.parameters(), clip);
    for (std::size_t g = 0; g < names.size(); ++g) {
      auto& options = optimizer->param_groups()[g].options();
      options.set_lr(now.lr.value_or(kLr) * (now.lr_scale ? now.lr_scale(names[g]) : 1));
      const bool decays = net.named_parameters()[names[g]].dim() >= 2;
      const double decay = decays ? now.weight_decay.value_or(kDecay) : 0;
      EXPECT_TRUE(set_decay<torch::optim::AdamWOptions>(options, decay) ||
                  set_decay<torch::optim::SGDOptions>(options, decay));
    }
    optimizer->step();
  }
  std::vector<at::Tensor> params;
  for (const at::Tensor& p : net.parameters()) params.push_back(p.detach());
  return params;
}

TEST(StepOptions, ChangesEqualTheSameChangesInTorchOptim) {
  for (const Kind& kind : kinds()) {
    for (const int micro_batches : {1, 2}) {
      const std::vector<at::Tensor> want = alone(kind, 2, micro_batches);
      for (int stage = 0; stage < 4; ++stage) {
        over(2, [&](const comm::Group& group) {
          const auto net = std::make_shared<Mlp>();
          net->initialize(7);
          Options options;
          options.stage = stage;
          options.optimizer = kind.optimizer;
          options.clip_norm = kClip;
          options.micro_batches = micro_batches;
          Engine engine(net, group, options);
          for (int step = 0; step < kSteps; ++step) {
            for (int k = 0; k < micro_batches; ++k) {
              engine.backward(
                  forward_loss(engine, *net, net->batch(batch_seed(step, group.rank(), k))));
            }
            engine.step(options_of(step));
          }
          const auto got = engine.full_parameters();
          for (std::size_t i = 0; i < want.size(); ++i) {
            EXPECT_TRUE(at::allclose(got[i].second, want[i], 1e-5, 1e-6))
                << kind.name << ", stage " << stage << ", " << got[i].first << " is off by "
                << (got[i].second - want[i]).abs().max().item<double>();
          }
        });
      }
    }
  }
}

// One weight decay and one scale apply to Muon's matrices and to its other parameters.
TEST(StepOptions, MuonStepOptionsEqualConstructedOptions) {
  std::vector<std::uint64_t> hashes;
  for (const bool given : {false, true}) {
    over(2, [&](const comm::Group& group) {
      const auto net = std::make_shared<Mlp>();
      net->initialize(7);
      Options options;
      options.stage = 2;
      Muon muon{.lr = 0.02, .weight_decay = 0.3, .elementwise = {.lr = 0.01, .weight_decay = 0.3}};
      if (given) muon.weight_decay = muon.elementwise.weight_decay = 0.1;
      options.optimizer = muon;
      options.policy = [&](const std::string& name, const at::Tensor& param) {
        ParamPolicy policy = default_policy(name, param);
        policy.decay = true;
        if (!given) policy.lr_scale = scale_of(name);
        return policy;
      };
      Engine engine(net, group, options);
      for (int step = 0; step < 3; ++step) {
        engine.backward(forward_loss(engine, *net, net->batch(batch_seed(step, group.rank(), 0))));
        engine.step(given ? StepOptions{.weight_decay = 0.3, .lr_scale = scale_of} : StepOptions{});
      }
      const std::uint64_t hash = engine.params_hash();
      if (group.rank() == 0) hashes.push_back(hash);
    });
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

// An optimizer that is unknown to the engine.
struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  double get_lr() const override { return 0.1; }
  void set_lr(const double) override {}
};
struct Own : torch::optim::Optimizer {
  explicit Own(std::vector<torch::optim::OptimizerParamGroup> groups)
      : Optimizer(std::move(groups), std::make_unique<OwnOptions>()) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(StepOptions, RejectsInvalidValuesBeforeAnythingChanges) {
  const auto net = std::make_shared<Mlp>();
  net->initialize(7);
  Engine engine(net, comm::Group());
  const auto backward = [&](Engine& on) {
    on.backward(forward_loss(on, *net, net->batch(batch_seed(0, 0, 0))));
  };
  backward(engine);
  EXPECT_TRUE(contains(error_of([&] { engine.step({.lr = -0.1}); }), "lr: got -0.1, must be"));
  EXPECT_TRUE(contains(error_of([&] { engine.step({.clip_norm = std::nan("")}); }), "clip_norm"));
  EXPECT_TRUE(contains(error_of([&] { engine.step({.weight_decay = -1}); }), "weight_decay"));
  EXPECT_TRUE(contains(
      error_of([&] { engine.step({.lr_scale = [](const std::string&) { return -1.0; }}); }),
      "lr_scale of \"layers.0.weight\": got -1"));
  EXPECT_EQ(engine.steps(), 0);
  EXPECT_NO_THROW(engine.step({.lr = 0.1}));
  EXPECT_EQ(engine.steps(), 1);

  const auto other = std::make_shared<Mlp>();
  Options options;
  options.optimizer = [](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<Own>(std::move(groups));
  };
  options.policy = [](const std::string&, const at::Tensor&) { return ParamPolicy(); };
  Engine own(other, comm::Group(), options);
  own.backward(forward_loss(own, *other, other->batch(1)));
  EXPECT_TRUE(contains(error_of([&] { own.step({.weight_decay = 0.1}); }), "AdamW, Adam, SGD"));
  EXPECT_NO_THROW(own.step());
}

// Compared with one process, with accumulation. Reading them does not change the bits of the step.
TEST(FullGradients, RequireABackwardPass) {
  over(2, [](const comm::Group& group) {
    const auto net = make_net("mlp");
    net->initialize(7);
    Engine engine(net, group, {.stage = 2});
    const auto step = [&] {
      engine.backward(forward_loss(engine, *net, net->batch(1)));
      engine.step();
    };
    step();
    EXPECT_THROW(engine.full_gradients(), UsageError);
    step();  // the engine still works
  });
}

TEST(FullGradients, EqualThoseOfOneProcessAtEveryStage) {
  for (const std::string name : {"mlp", "tied", "odd32"}) {
    for (const int micro_batches : {1, 3}) {
      constexpr int kRanks = 3;
      const auto single = make_net(name);
      single->initialize(7);
      for (int r = 0; r < kRanks; ++r) {
        single->set_rank(r);
        for (int k = 0; k < micro_batches; ++k) {
          (single->loss(single->batch(batch_seed(0, r, k))) / (kRanks * micro_batches)).backward();
        }
      }
      std::map<std::string, at::Tensor> want;
      for (const auto& item : single->named_parameters()) {
        const at::Tensor& grad = item.value().grad();
        if (!item.value().requires_grad()) continue;
        want[item.key()] = grad.defined() ? grad : at::zeros_like(item.value());
      }
      for (int stage = 0; stage < 4; ++stage) {
        std::vector<std::uint64_t> hashes;
        for (const bool read : {true, false}) {
          over(kRanks, [&](const comm::Group& group) {
            const auto net = make_net(name);
            net->initialize(7);
            net->set_rank(group.rank());
            Options options;
            options.stage = stage;
            options.micro_batches = micro_batches;
            options.bucket_bytes = 300;
            Engine engine(net, group, options);
            for (int k = 0; k < micro_batches; ++k) {
              engine.backward(
                  forward_loss(engine, *net, net->batch(batch_seed(0, group.rank(), k))));
            }
            if (read) {
              const auto got = engine.full_gradients();
              EXPECT_EQ(got.size(), want.size());
              for (const auto& [param, grad] : got) {
                const at::Tensor& expected = want.at(param);
                EXPECT_EQ(grad.sizes(), expected.sizes()) << param;
                EXPECT_TRUE(at::allclose(grad, expected, 1e-4, 1e-6))
                    << name << ", stage " << stage << ", " << param;
              }
            }
            engine.step();
            const std::uint64_t hash = engine.params_hash();
            if (group.rank() == 0) hashes.push_back(hash);
          });
        }
        EXPECT_EQ(hashes[0], hashes[1]) << name << ", stage " << stage;
      }
    }
  }
}

// The recipe of examples/two_engines.cpp: the generator's gradient passes through another engine.
TEST(TwoEngines, GradientsThroughAnotherEngineEqualOneProcess) {
  const auto linears = [](std::uint64_t seed) {
    torch::nn::Sequential net(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 4));
    const at::NoGradGuard no_grad;
    for (const at::Tensor& p : net->parameters()) p.copy_(numbers(p.sizes(), ++seed));
    return net;
  };
  torch::nn::Sequential g = linears(1), d = linears(50);
  for (const std::uint64_t r : {0, 1}) {
    (d->forward(g->forward(numbers({3, 4}, 90 + r))).square().mean() / 2).backward();
  }
  for (int stage = 0; stage < 4; ++stage) {
    over(2, [&](const comm::Group& group) {
      Options options;
      options.stage = stage;
      DataParallel made(linears(1), group, options), judge(linears(50), group, options);
      const std::uint64_t before = judge.params_hash();
      const at::Tensor output =
          made(numbers({3, 4}, 90 + static_cast<std::uint64_t>(group.rank())));
      const at::Tensor cut = output.detach().requires_grad_();
      judge.backward(judge(cut).square().mean());
      judge.discard();
      made.backward(output, cut.grad());
      const auto got = made.full_gradients();
      made.step();
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::allclose(got[i].second, g->parameters()[i].grad(), 1e-4, 1e-6))
            << "stage " << stage << ", " << got[i].first;
      }
      EXPECT_EQ(judge.params_hash(), before) << "stage " << stage;
    });
  }
}

}  // namespace
}  // namespace tessera::zero::test
