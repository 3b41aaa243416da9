// Mistakes that would train something other than the program intends: each works, or throws an
// error that names it.

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/comm/bootstrap.h"
#include "tessera/comm/mesh.h"
#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

std::shared_ptr<Mlp> made(std::uint64_t seed) {
  auto net = std::make_shared<Mlp>();
  net->initialize(seed);
  return net;
}

Options with(int stage, const char* layout = "fp32") {
  Options options;
  options.stage = stage;
  options.layout = parse_state_layout(layout);
  options.optimizer = SGD{.lr = 0.1};
  return options;
}

void train_step(Engine& engine, Net& net, std::uint64_t seed) {
  engine.backward(forward_loss(engine, net, net.batch(seed)));
  engine.step();
}

// Returns the contents of a file of torch::save.
std::string saved(std::uint64_t seed) {
  std::ostringstream out;
  torch::save(made(seed), out);
  return out.str();
}

void load(std::shared_ptr<Mlp> net, const std::string& file) {
  std::istringstream in(file);
  torch::load(net, in);
}

// Replaces parameters as torch::load() does for tensors on another device, and at stage 0 for all.
void replace(Mlp& net, std::uint64_t seed) {
  const auto source = made(seed)->parameters();
  auto params = net.parameters();
  for (std::size_t i = 0; i < params.size(); ++i) params[i].set_data(source[i].detach().clone());
}

TEST(Misuse, RejectsReplacedParametersByName) {
  for (int stage = 0; stage < 4; ++stage) {
    for (const char* layout : {"fp32", "bf16"}) {
      over(2, [&](const comm::Group& group) {
        auto net = made(7);
        Engine engine(net, group, with(stage, layout));
        train_step(engine, *net, 1);
        replace(*net, 5);
        for (const std::string& error :
             {error_of([&] { forward_loss(engine, *net, net->batch(2)); }),
              error_of([&] { engine.step(); }), error_of([&] { engine.full_parameters(); })}) {
          EXPECT_TRUE(contains(error, "\"layers.0.weight\" was replaced")) << error;
          EXPECT_TRUE(contains(error, "load_parameters(model)")) << error;
        }
      });
    }
  }
}

TEST(Misuse, TorchLoadIntoATrainedModelThrows) {
  const std::string file = saved(5);
  for (int stage = 0; stage < 4; ++stage) {
    for (const char* layout : {"fp32", "bf16"}) {
      auto net = made(7);
      Engine engine(net, comm::Group(), with(stage, layout));
      train_step(engine, *net, 1);
      const std::string error = error_of([&] {
        load(net, file);
        train_step(engine, *net, 2);
      });
      EXPECT_NE(error, "") << stage << layout;
      if (stage == 0 && std::string(layout) == "fp32") {
        EXPECT_TRUE(contains(error, "\"layers.0.weight\" was replaced")) << error;
        engine.load_parameters(*net);
        EXPECT_TRUE(engine.full_parameters()[0].second.equal(made(5)->parameters()[0]));
        train_step(engine, *net, 2);
      }
    }
  }
}

// Training continues like that of an engine that was made with the loaded values.
TEST(Misuse, TrainsLoadedParameters) {
  const std::string file = saved(5);
  for (int stage = 0; stage < 4; ++stage) {
    for (const char* layout : {"fp32", "bf16", "bf16-nomaster"}) {
      for (const bool own_module : {false, true}) {
        over(2, [&](const comm::Group& group) {
          Options options = with(stage, layout);
          options.gather = own_module ? Gather::automatic : Gather::copy;
          auto fresh = made(5), net = made(7);
          Engine wanted(fresh, group, options), engine(net, group, options);
          train_step(engine, *net, 1);
          if (own_module) {  // on rank 0 only
            if (group.rank() == 0) replace(*net, 5);
            engine.load_parameters(*net);
          } else {
            auto loaded = made(8);
            load(loaded, file);
            engine.load_parameters(*loaded);
          }
          const auto values = engine.full_parameters(), start = wanted.full_parameters();
          for (std::size_t i = 0; i < values.size(); ++i) {
            EXPECT_TRUE(values[i].second.equal(start[i].second))
                << values[i].first << " " << stage << " " << layout << " " << own_module;
          }
          // Without a master copy, stochastic rounding depends on the number of the step.
          if (std::string(layout) == "bf16-nomaster") return;
          for (std::uint64_t step = 0; step < 2; ++step) {
            train_step(wanted, *fresh, 20 + step);
            train_step(engine, *net, 20 + step);
          }
          EXPECT_EQ(engine.params_hash(), wanted.params_hash()) << stage << " " << layout;
        });
      }
    }
  }
}

TEST(Misuse, LoadsBuffersWithTheParameters) {
  over(2, [](const comm::Group& group) {
    auto net = std::make_shared<Conv>(), loaded = std::make_shared<Conv>();
    loaded->norm->running_mean.fill_(group.rank() == 0 ? 3 : 4);
    Engine engine(net, group, with(1));
    engine.load_parameters(*loaded);
    EXPECT_TRUE(net->norm->running_mean.eq(3).all().item<bool>());
  });
}

TEST(Misuse, RejectsParametersThatDoNotFit) {
  over(2, [&](const comm::Group& group) {
    auto net = made(7);
    Engine engine(net, group, with(2));
    if (group.rank() == 1) replace(*net, 5);
    const std::string alone = error_of([&] { engine.load_parameters(*net); });
    EXPECT_TRUE(contains(alone, "\"layers.0.weight\" has new values on rank 1 but not on rank 0"))
        << alone;
  });
  over(2, [&](const comm::Group& group) {
    auto net = made(7);
    Engine engine(net, group, with(0));
    if (group.rank() == 1) net->to(at::kDouble);
    if (group.rank() == 0) replace(*net, 5);
    const std::string error = error_of([&] { engine.load_parameters(*net); });
    const char* const own = "is now Double on cpu, but the engine trains Float on cpu";
    EXPECT_TRUE(contains(error, group.rank() == 1 ? own : "rank 1 of group")) << error;
  });
  over(2, [&](const comm::Group& group) {
    auto net = made(7);
    Engine engine(net, group, with(3));
    const std::string error = error_of([&] { engine.load_parameters(*std::make_shared<Tied>()); });
    EXPECT_TRUE(contains(error,
                         "\"layers.0.weight\" of the model has shape [9, 5], but the given module "
                         "has no parameter of that name"))
        << error;
  });
  over(2, [&](const comm::Group& group) {
    auto net = made(7);
    Options options = with(0);
    options.broadcast_start = false;
    Engine engine(net, group, options);
    const std::string error =
        error_of([&] { engine.load_parameters(*made(group.rank() == 0 ? 5 : 6)); });
    EXPECT_TRUE(contains(error, "rank 1 starts with other parameters")) << error;
  });
}

TEST(Misuse, RejectsALossWithoutAGraph) {
  auto net = made(7);
  Engine engine(net, comm::Group(), with(0));
  const at::Tensor loss = forward_loss(engine, *net, net->batch(1));
  const std::string error = error_of([&] { engine.backward(loss.detach()); });
  EXPECT_TRUE(contains(error, "has no graph")) << error;
  {
    const at::NoGradGuard no_grad;
    EXPECT_THROW(engine.backward(forward_loss(engine, *net, net->batch(1))), UsageError);
  }
  engine.backward(loss);
  EXPECT_GT(engine.step().grad_norm, 0);
}

TEST(Misuse, RejectsAStepWithoutBackward) {
  for (const int ranks : {1, 2}) {
    for (int stage = 0; stage < 4; ++stage) {
      over(ranks, [&](const comm::Group& group) {
        auto net = made(7), other = made(7);
        Engine engine(net, group, with(stage)), wanted(other, group, with(stage));
        train_step(engine, *net, 1);
        train_step(wanted, *other, 1);
        const std::string error = error_of([&] { engine.step(); });
        EXPECT_TRUE(contains(error, "no rank has called backward()")) << error;
        EXPECT_EQ(engine.steps(), 1);
        train_step(engine, *net, 2);
        train_step(wanted, *other, 2);
        EXPECT_EQ(engine.params_hash(), wanted.params_hash()) << "stage " << stage;
      });
    }
  }
}

// Ranks that announced 0 tokens in begin() need not call backward.
TEST(Misuse, AcceptsAStepWithoutTokensOrBackward) {
  over(2, [](const comm::Group& group) {
    auto net = made(7);
    Engine engine(net, group, with(1));
    const std::uint64_t before = engine.params_hash();
    engine.begin({.micro_batches = 1, .tokens = 0.0});
    EXPECT_EQ(engine.step().loss, 0);
    EXPECT_EQ(engine.params_hash(), before);
  });
}

TEST(Misuse, RejectsUnfreezingAFrozenParameter) {
  for (const int stage : {0, 3}) {
    over(2, [&](const comm::Group& group) {
      auto net = made(7);
      at::Tensor frozen = net->layers->parameters()[0];
      frozen.requires_grad_(false);
      Engine engine(net, group, with(stage));
      train_step(engine, *net, 1);
      frozen.requires_grad_(true);
      const at::Tensor loss = forward_loss(engine, *net, net->batch(2));
      for (const std::string& error :
           {error_of([&] { engine.backward(loss); }), error_of([&] { engine.step(); })}) {
        EXPECT_TRUE(contains(error, "\"layers.0.weight\" was frozen when the engine was made"))
            << error;
      }
      frozen.requires_grad_(false);
      train_step(engine, *net, 2);
    });
  }
}

TEST(Misuse, TrainedParametersMayBeFrozenAndUnfrozen) {
  for (int stage = 0; stage < 4; ++stage) {
    over(2, [&](const comm::Group& group) {
      auto net = made(7);
      Engine engine(net, group, with(stage));
      const auto value = [&](std::size_t i) { return engine.full_parameters()[i].second.clone(); };
      at::Tensor first = net->layers->parameters()[0];
      const at::Tensor before = value(0), other = value(2);
      first.requires_grad_(false);
      train_step(engine, *net, 1);
      EXPECT_TRUE(value(0).equal(before)) << "stage " << stage;
      EXPECT_FALSE(value(2).equal(other)) << "stage " << stage;
      first.requires_grad_(true);
      train_step(engine, *net, 2);
      EXPECT_FALSE(value(0).equal(before)) << "stage " << stage;
    });
  }
}

TEST(Misuse, ConstructionNamesSettingsThatDifferBetweenRanks) {
  const auto message = [](const std::function<void(Options&)>& change) {
    std::vector<std::string> errors(2);
    over(2, [&](const comm::Group& group) {
      Options options = with(0);
      if (group.rank() == 1) change(options);
      auto net = made(7);
      errors[static_cast<std::size_t>(group.rank())] =
          error_of([&] { Engine(net, group, options); });
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  const std::string lr = message([](Options& options) { options.optimizer = SGD{.lr = 0.25}; });
  EXPECT_TRUE(contains(lr, "rank 1 ")) << lr;
  EXPECT_TRUE(contains(lr, "sgd (lr 0.25,")) << lr;
  EXPECT_TRUE(contains(lr, "sgd (lr 0.1,")) << lr;
  const std::string rule = message([](Options& options) { options.optimizer = AdamW{}; });
  EXPECT_TRUE(contains(rule, "adamw (lr 0.001, beta1 0.9,")) << rule;
  const std::string clip = message([](Options& options) { options.clip_norm = 2.5; });
  EXPECT_TRUE(contains(clip, "has clip_norm 2.5 where rank 0 has clip_norm 0")) << clip;
  const std::string policy = message([](Options& options) {
    options.policy = [](const std::string& name, const at::Tensor& param) {
      ParamPolicy policy = default_policy(name, param);
      if (name == "layers.2.weight") policy.lr_scale = 0.5;
      return policy;
    };
  });
  EXPECT_TRUE(contains(policy, "policy of \"layers.2.weight\": lr_scale 0.5")) << policy;
  const std::string torchs = message([](Options& options) {
    options.optimizer = TorchOptimizer([](std::vector<torch::optim::OptimizerParamGroup> groups) {
      return std::make_unique<torch::optim::Adam>(std::move(groups),
                                                  torch::optim::AdamOptions(0.5));
    });
  });
  EXPECT_TRUE(contains(torchs, "torch::optim::Adam (lr 0.5, weight_decay 0,")) << torchs;
  EXPECT_EQ(message([](Options&) {}), "");
}

// After the error the step can be repeated with equal settings.
TEST(Misuse, StepNamesLearningRatesThatDifferBetweenRanks) {
  for (const int stage : {0, 2, 3}) {
    over(2, [&](const comm::Group& group) {
      auto net = made(7), other = made(7);
      Engine engine(net, group, with(stage)), wanted(other, group, with(stage));
      train_step(engine, *net, 1);
      train_step(wanted, *other, 1);
      engine.backward(forward_loss(engine, *net, net->batch(2)));
      wanted.backward(forward_loss(wanted, *other, other->batch(2)));
      const std::string error = error_of([&] { engine.step(group.rank() == 0 ? 0.5 : 0.25); });
      EXPECT_TRUE(contains(error, "the learning rate is 0.25 on rank 1 of group")) << error;
      EXPECT_TRUE(contains(error, "and 0.5 on rank 0")) << error;
      engine.step(0.5);
      wanted.step(0.5);
      EXPECT_EQ(engine.params_hash(), wanted.params_hash());
    });
  }
}

// An engine for one part of a model whose parts are on the ranks of `parts`.
Engine part_of(std::shared_ptr<torch::nn::Module> net, DataGroups groups, const Options& options,
               const comm::Group& parts) {
  return Engine::of_part(std::move(net), std::move(groups), options, {.group = parts});
}

// Tensor-parallel ranks hold copies of some parameters, which would drift apart.
TEST(Misuse, StepNamesLearningRatesThatDifferBetweenParts) {
  over(2, [](const comm::Group& group) {
    auto net = made(7);
    Options options = with(0);
    Engine engine = part_of(net, DataGroups(comm::Group()), options, group);
    engine.backward(forward_loss(engine, *net, net->batch(1)));
    const std::string error = error_of([&] { engine.step(group.rank() == 0 ? 0.5 : 0.25); });
    EXPECT_TRUE(contains(error, "the learning rate is 0.25 on rank 1 of group")) << error;
    engine.step(0.5);
  });
  over(2, [](const comm::Group& group) {
    auto net = made(7);
    Options options = with(0);
    options.clip_norm = group.rank();
    const std::string error =
        error_of([&] { part_of(net, DataGroups(comm::Group()), options, group); });
    EXPECT_TRUE(contains(error, "has clip_norm 1 where rank 0 has clip_norm 0")) << error;
  });
}

// If the replicas of one part differ, the ranks with the other parts must not step alone.
TEST(Misuse, EveryRankOfAMeshThrowsIfLearningRatesDiffer) {
  over(4, [](const comm::Group& world) {
    const comm::Mesh mesh(world, "dp=2,tp=2");
    auto net = made(7);
    Options options = with(0);
    Engine engine = part_of(net, DataGroups(mesh), options, mesh.tp());
    engine.backward(forward_loss(engine, *net, net->batch(1)));
    const std::string error = error_of([&] { engine.step(world.rank() == 0 ? 0.5 : 0.25); });
    EXPECT_TRUE(contains(error, "step(): the ")) << world.rank() << ": " << error;
    engine.step(0.25);
  });
}

TEST(Misuse, PartsOfAModelMayHaveDifferentParameterGroups) {
  over(2, [](const comm::Group& group) {
    Options options = with(0);
    options.optimizer = TorchOptimizer([](std::vector<torch::optim::OptimizerParamGroup> groups) {
      return std::make_unique<torch::optim::Adam>(std::move(groups),
                                                  torch::optim::AdamOptions(0.5));
    });
    // With a bias there is a group that does not decay.
    const torch::nn::Linear net(torch::nn::LinearOptions(3, 2).bias(group.rank() == 0));
    EXPECT_NO_THROW(part_of(net.ptr(), DataGroups(comm::Group()), options, group));
  });
}

TEST(Misuse, WritesInPlaceReachTheMasterCopy) {
  for (int stage = 0; stage < 3; ++stage) {
    for (const char* layout : {"bf16", "bf16-fp32grad"}) {
      over(2, [&](const comm::Group& group) {
        auto net = made(7);
        Engine engine(net, group, with(stage, layout));
        train_step(engine, *net, 1);
        const at::Tensor before = engine.full_parameters()[0].second;
        engine.synchronize();
        at::Tensor weight = net->layers->parameters()[0];
        {
          const at::NoGradGuard no_grad;
          weight.narrow(0, 0, 4).mul_(0.5);
        }
        const at::Tensor written = weight.detach().to(at::kFloat, false, true);
        const at::Tensor after = engine.full_parameters()[0].second;
        EXPECT_TRUE(after.narrow(0, 0, 4).equal(written.narrow(0, 0, 4)));
        // The others keep their full fp32 precision.
        EXPECT_TRUE(after.narrow(0, 4, 5).equal(before.narrow(0, 4, 5)));
        EXPECT_FALSE(after.narrow(0, 4, 5).equal(written.narrow(0, 4, 5)));
        engine.backward(forward_loss(engine, *net, net->batch(2)));
        engine.step(0.0);
        engine.synchronize();
        EXPECT_TRUE(weight.detach().to(at::kFloat).equal(written)) << stage << layout;
      });
    }
  }
}

// Tensor::data() has its own version counter, so load_parameters() compares the values.
TEST(Misuse, LoadParametersSeesWritesThroughData) {
  auto net = made(7);
  Engine engine(net, comm::Group(), with(0, "bf16"));
  net->layers->parameters()[0].data().fill_(0.5);
  engine.load_parameters(*net);
  EXPECT_TRUE(engine.full_parameters()[0].second.eq(0.5).all().item<bool>());
}

TEST(Misuse, RejectsWritesThatDifferBetweenRanks) {
  for (const bool one_rank_writes : {true, false}) {
    over(2, [&](const comm::Group& group) {
      auto net = made(7);
      Engine engine(net, group, with(0));
      if (group.rank() == 1 || !one_rank_writes) {
        const at::NoGradGuard no_grad;
        net->layers->parameters()[0].mul_(0.5 + group.rank());
      }
      engine.backward(forward_loss(engine, *net, net->batch(1)));
      const std::string error = error_of([&] { engine.step(); });
      EXPECT_TRUE(contains(error, "ranks 0 and 1 of group")) << error;
      EXPECT_TRUE(contains(error, "to different parameters, or different values,")) << error;
    });
  }
}

TEST(Misuse, RejectsWritesToAGatheredCopy) {
  struct Writer : torch::nn::Module {
    Writer() : weight(register_parameter("weight", at::ones({3, 3}))) {}
    at::Tensor forward(const at::Tensor& x) {
      if (writes) {
        const at::NoGradGuard no_grad;
        weight.clamp_(-0.5, 0.5);
      }
      return torch::matmul(x, weight * 1.0);
    }
    at::Tensor weight;
    bool writes = false;
  };
  over(2, [](const comm::Group& group) {
    auto net = std::make_shared<Writer>();
    Options options = with(3);
    options.gather = Gather::copy;
    Engine engine(net, group, options);
    const auto loss = [&] {
      return nn::observed(
                 engine.root(), [&](at::Tensor in) { return net->forward(in); }, at::ones({2, 3}))
          .square()
          .mean();
    };
    engine.backward(loss());
    engine.step();
    net->writes = true;
    const std::string error = error_of([&] { engine.backward(loss()); });
    EXPECT_TRUE(contains(error, "\"weight\" was written to in place. At stage 3")) << error;
    net->writes = false;
    net->weight.set_data(at::full({3, 3}, 0.5f));
    engine.load_parameters(*net);
    engine.backward(loss());
    engine.step();
  });
}

TEST(Misuse, DescribeNamesTypesThatDifferFromTheLayout) {
  torch::nn::Linear net(3, 2);
  EXPECT_TRUE(contains(DataParallel(net, comm::Group()).describe(), "layout fp32: 2 parameters"));
  net->to(at::kBFloat16);
  const std::string text = DataParallel(net, comm::Group()).describe();
  EXPECT_TRUE(contains(text, "layout fp32 (2 parameters in BFloat16 with an fp32 master copy)"))
      << text;
}

TEST(Misuse, ErrorsOfTorchHaveNoStackFramesAfterInit) {
  const auto wrong = [] { return error_of([] { at::ones({2, 3}).matmul(at::ones({2, 3})); }); };
  try {
    at::ones({2, 3}).matmul(at::ones({2, 3}));
    ADD_FAILURE() << "was accepted";
  } catch (const std::exception& error) {
    EXPECT_FALSE(contains(message_of(error), "frame #")) << message_of(error);
    EXPECT_TRUE(contains(message_of(error), "shapes cannot be multiplied")) << message_of(error);
  }
  comm::init();
  EXPECT_FALSE(contains(wrong(), "frame #")) << wrong();
}

}  // namespace
}  // namespace tessera::zero::test
