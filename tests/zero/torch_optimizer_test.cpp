// Optimizers of torch::optim in the engine: their states are saved and loaded like those of zero::
// optimizers.

#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include <set>

#include "tessera/core/errors.h"
#include "tests/zero/moved_state.h"

namespace tessera::zero::test {
namespace {

namespace optim = torch::optim;
using Groups = std::vector<optim::OptimizerParamGroup>;

template <class O, class Options>
TorchOptimizer of(const Options& options) {
  return [options](Groups groups) { return std::make_unique<O>(std::move(groups), options); };
}

struct OptimizerCase {
  std::string name;
  TorchOptimizer make;
  std::vector<std::string> states;
};

std::vector<OptimizerCase> optimizers() {
  return {
      {"Adam", of<optim::Adam>(optim::AdamOptions(0.02)), {"exp_avg", "exp_avg_sq"}},
      {"Adam, amsgrad",
       of<optim::Adam>(optim::AdamOptions(0.02).amsgrad(true)),
       {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
      {"AdamW", of<optim::AdamW>(optim::AdamWOptions(0.02)), {"exp_avg", "exp_avg_sq"}},
      {"SGD", of<optim::SGD>(optim::SGDOptions(0.05)), {}},
      // The first step is not dampened, so a state of zeros differs from no state.
      {"SGD, dampened",
       of<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).dampening(0.5)),
       {"momentum_buffer"}},
      {"RMSprop",
       of<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true)),
       {"grad_avg", "momentum_buffer", "square_avg"}},
      {"Adagrad",
       of<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.1)),
       {"sum"}},
  };
}

Case case_of(const OptimizerCase& optimizer, const std::string& net, int ranks, int stage,
             const std::string& layout = "fp32") {
  Case run;
  run.net = net;
  run.ranks = ranks;
  run.options.stage = stage;
  run.options.layout = parse_state_layout(layout);
  run.options.optimizer = optimizer.make;
  return run;
}

// Five steps, a load, five more: the bits of ten steps on the same mesh, close to them on another.
TEST(TorchOptimizer, ContinuesAfterALoadOnAnyNumberOfRanksAndStage) {
  for (const OptimizerCase& optimizer : optimizers()) {
    const std::string net = optimizer.name == "Adam" ? "tied" : "mlp";
    const Case two = case_of(optimizer, net, 2, 1);
    const WholeState ten = train_from(two, 0, 10, nullptr);
    const WholeState five = train_from(two, 0, 5, nullptr);
    std::set<std::string> states;
    for (const auto& [name, values] : five.values) states.insert(name.substr(name.find(' ') + 1));
    states.erase("param");
    EXPECT_EQ(std::vector(states.begin(), states.end()), optimizer.states) << optimizer.name;
    expect_same_bits(train_from(two, 5, 10, &five), ten, optimizer.name);
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 0}, {3, 2}, {2, 3}}) {
      const Case other = case_of(optimizer, net, ranks, stage);
      const std::string what = optimizer.name + ", " + other.describe();
      const WholeState got = train_from(other, 5, 10, &five);
      if (ranks == 2) {
        expect_same_bits(got, ten, what);  // all stages give the same bits
      } else {
        expect_close(got, ten, 1e-4, what);
      }
    }
  }
}

// The optimizer then updates the master copy.
TEST(TorchOptimizer, ContinuesAfterALoadWithAMasterCopy) {
  const Case run = case_of(optimizers()[2], "odd", 2, 2, "bf16");
  const WholeState five = train_from(run, 0, 5, nullptr);
  expect_same_bits(train_from(run, 5, 8, &five), train_from(run, 0, 8, nullptr), "AdamW, bf16");
}

// Saving before the first step changes nothing, and loading such a state starts again.
TEST(TorchOptimizer, StateBeforeTheFirstStepIsThatOfANewOptimizer) {
  for (const OptimizerCase& optimizer : optimizers()) {
    const Case run = case_of(optimizer, "mlp", 2, 2);
    const WholeState none = train_from(run, 0, 0, nullptr);
    expect_same_bits(train_from(run, 0, 3, &none), train_from(run, 0, 3, nullptr), optimizer.name);
  }
}

// A load resets an optimizer that has advanced.
TEST(TorchOptimizer, LoadResetsAnOptimizerThatHasAdvanced) {
  for (const OptimizerCase& optimizer : optimizers()) {
    const Case run = case_of(optimizer, "mlp", 1, 0);
    over(1, [&](const comm::Group& group) {
      auto net = make_net(run.net);
      net->initialize(7);
      Engine engine(net, group, run.options);
      std::vector<at::Tensor> saved;
      for (const StateShard& shard : engine.state(StateScope::held)) {
        saved.push_back(shard.values.detach().clone());
      }
      const StepCounts progress = engine.progress();
      std::vector<std::uint64_t> hashes;
      for (int round = 0; round < 2; ++round) {
        for (int step = 0; step < 3; ++step) one_step(engine, *net, common_batch(*net, step));
        hashes.push_back(engine.params_hash());
        const at::NoGradGuard no_grad;
        const auto shards = engine.state(StateScope::held);
        ASSERT_EQ(shards.size(), saved.size());
        for (std::size_t i = 0; i < saved.size(); ++i) shards[i].values.copy_(saved[i]);
        engine.resume(progress);
      }
      EXPECT_EQ(hashes[0], hashes[1]) << optimizer.name;
    });
  }
}

// An optimizer of an unknown class trains, but saving throws instead of saving a part.
TEST(TorchOptimizer, RejectsSavingAnUnknownClassByName) {
  struct Halving : optim::SGD {
    using SGD::SGD;
  };
  Case run = case_of(
      {"",
       [](Groups groups) { return std::make_unique<Halving>(groups, optim::SGDOptions(0.1)); },
       {}},
      "mlp", 1, 0);
  over(1, [&](const comm::Group& group) {
    auto net = make_net(run.net);
    net->initialize(7);
    Engine engine(net, group, run.options);
    one_step(engine, *net, common_batch(*net, 0));
    try {
      engine.state(StateScope::owned);
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("Halving"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace tessera::zero::test
