// State that a checkpoint saves from one engine and loads into another.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tessera/core/errors.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

Case state_case(const std::string& net, int stage, const std::string& layout) {
  Case run;
  run.net = net;
  run.options.stage = stage;
  run.options.layout = parse_state_layout(layout);
  run.options.optimizer = AdamW{.lr = 0.02};
  run.options.clip_norm = 1;
  return run;
}

void one_step(Engine& engine, Net& net, int step) {
  const Batch batch = net.batch(batch_seed(step, engine.group().rank(), 0));
  engine.backward(nn::observed(engine.root(), [&] { return net.loss(batch); }));
  engine.step();
}

// Trains a few steps, copies the state into a new engine, and continues with both.
TEST(State, NewEngineContinuesWithTheSameBits) {
  for (const std::string net_name : {"mlp", "tied", "odd"}) {
    for (const std::string layout : {"fp32", "bf16", "bf16-nomaster"}) {
      for (int stage = 0; stage < 4; ++stage) {
        const Case run = state_case(net_name, stage, layout);
        comm::run_threads(2, [&](std::shared_ptr<comm::Backend> backend) {
          const comm::Group group(std::move(backend));
          const auto fresh = [&](std::uint64_t seed) {
            auto net = make_net(run.net);
            net->initialize(seed);
            net->set_rank(group.rank());
            return net;
          };
          auto net = fresh(7), other = fresh(8);
          Engine engine(net, group, run.options);
          for (int step = 0; step < 3; ++step) one_step(engine, *net, step);
          Engine copy(other, group, run.options);
          {
            const at::NoGradGuard no_grad;
            const auto from = engine.state(StateScope::held), to = copy.state(StateScope::held);
            ASSERT_EQ(from.size(), to.size());
            for (std::size_t i = 0; i < from.size(); ++i) {
              ASSERT_EQ(from[i].param + from[i].state, to[i].param + to[i].state);
              ASSERT_EQ(from[i].begin, to[i].begin);
              to[i].values.copy_(from[i].values);
            }
          }
          copy.resume(engine.progress());
          EXPECT_EQ(copy.params_hash(), engine.params_hash()) << run.describe();
          one_step(engine, *net, 3);
          one_step(copy, *other, 3);
          EXPECT_EQ(copy.params_hash(), engine.params_hash()) << run.describe();
          EXPECT_EQ(copy.steps(), 4);
        });
      }
    }
  }
}

// Rank 0 reads the parameters late; rank 1 already overwrites its own.
TEST(State, IsNotOverwrittenWhileAPeerReadsIt) {
  for (const Gather gather : {Gather::copy, Gather::alias}) {
    for (const std::string layout : {"fp32", "bf16"}) {  // bf16: resume() writes what peers read
      Case run = state_case("mlp", 3, layout);
      run.options.gather = gather;
      comm::run_threads(2, [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Group group(std::move(backend));
        auto net = make_net(run.net);
        net->initialize(7);
        Engine engine(net, group, run.options);
        const Batch batch = net->batch(1);
        const auto evaluate = [&](bool late) {
          const at::NoGradGuard no_grad;
          return nn::observed(engine.root(),
                              [&] {
                                if (late)
                                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                                return net->loss(batch);
                              })
              .item<double>();
        };
        const double before = evaluate(false);
        EXPECT_EQ(evaluate(group.rank() == 0), before) << run.describe();
        const at::NoGradGuard no_grad;
        for (const StateShard& shard : engine.state(StateScope::held)) shard.values.fill_(0.5);
        engine.resume(engine.progress());
        EXPECT_NE(evaluate(false), before) << run.describe();
      });
    }
  }
}

// A load would detect it too late: gradients of other parameters are in flight.
TEST(State, CannotBeOverwrittenInTheMiddleOfAStep) {
  auto net = std::make_shared<Mlp>();
  net->initialize(7);
  Options options;
  options.micro_batches = 2;
  Engine engine(net, comm::Group(), options);
  const auto pass = [&] {
    engine.backward(nn::observed(engine.root(), [&] { return net->loss(net->batch(1)); }));
  };
  pass();
  EXPECT_THROW(engine.state(StateScope::held), UsageError);
  EXPECT_FALSE(engine.state(StateScope::owned).empty());
  pass();
  engine.step();
  EXPECT_FALSE(engine.state(StateScope::held).empty());
}

// The shards of a parameter and of its state cover each element once.
TEST(State, EveryElementHasOneOwner) {
  for (const int ranks : {1, 2, 3}) {
    for (int stage = 0; stage < 4; ++stage) {
      const Case run = state_case("odd", stage, "bf16");
      std::mutex guard;
      std::map<std::string, std::vector<int>> owners;
      comm::run_threads(ranks, [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Group group(std::move(backend));
        auto net = make_net(run.net);
        net->initialize(7);
        Engine engine(net, group, run.options);
        std::map<std::string, std::int64_t> sizes;
        for (auto& [name, value] : engine.full_parameters()) sizes[name] = value.numel();
        const std::lock_guard lock(guard);
        for (const StateShard& piece : engine.state(StateScope::owned)) {
          if (piece.state == "buffer") continue;
          auto& count = owners[piece.param + " " + piece.state];
          count.resize(static_cast<std::size_t>(sizes.at(piece.param)));
          for (std::int64_t i = 0; i < piece.values.numel(); ++i) {
            ++count[static_cast<std::size_t>(piece.begin + i)];
          }
        }
      });
      EXPECT_FALSE(owners.empty());
      for (const auto& [name, count] : owners) {
        for (const int n : count) ASSERT_EQ(n, 1) << name << ", stage " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::zero::test
