// Moments with fewer bits, and optimizer state in files.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "tessera/core/errors.h"
#include "tessera/core/half.h"
#include "tessera/core/philox.h"
#include "tessera/kernels/moments.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/memory/allocator.h"
#include "tests/combinations.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

const std::vector<OptimizerState> kStates = {OptimizerState::fp32, OptimizerState::bf16,
                                             OptimizerState::int8};

Case state_case(const std::string& net, int ranks, int stage, const std::string& layout,
                OptimizerState state) {
  Case run;
  run.net = net;
  run.ranks = ranks;
  run.steps = 5;
  run.options.stage = stage;
  run.options.layout = parse_state_layout(layout);
  run.options.optimizer = AdamW{.lr = 0.02};
  run.options.optimizer_state = state;
  run.options.clip_norm = 1;
  run.options.seed = 5;
  return run;
}

void put_on_disk(Case& run, const TemporaryFolder& folder) {
  run.options.offload = parse_offload("optimizer", folder.path);
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.hash, b.hash) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
}

// Large enough for several records and tiles, and for shards that are no whole tiles.
class Wide : public Net {
 public:
  Wide() {
    layers = register_module("layers",
                             torch::nn::Sequential(torch::nn::Linear(37, 2000), torch::nn::Tanh(),
                                                   torch::nn::Linear(2000, 41)));
  }
  at::Tensor loss(const Batch& b) override {
    const at::Tensor x = b.x.to(layers->parameters().front().scalar_type());
    return torch::mse_loss(layers->forward(x).to(at::kFloat), b.y);
  }
  Batch batch(std::uint64_t seed) const override {
    return {numbers({kSamples, 37}, seed), numbers({kSamples, 41}, seed + 1)};
  }
  torch::nn::Sequential layers{nullptr};
};

struct WideRun {
  std::uint64_t hash = 0;
  std::vector<double> losses;
};

WideRun train_wide(int ranks, const Options& options, std::shared_ptr<memory::Ledger> ledger = {}) {
  WideRun result;
  std::mutex guard;
  over(ranks, [&](const comm::Group& group) {
    auto net = std::make_shared<Wide>();
    net->initialize(7);
    Options mine = options;
    if (group.rank() == 0 && ledger) mine.ledger = ledger;
    Engine engine(net, group, mine);
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      engine.backward(forward_loss(engine, *net, net->batch(batch_seed(step, group.rank(), 0))));
      losses.push_back(engine.step().loss);
    }
    const std::uint64_t hash = engine.params_hash();
    const std::lock_guard lock(guard);
    if (group.rank() == 0) result = {hash, losses};
  });
  return result;
}

TEST(SmallMoments, StagesAreBitwiseEqual) {
  for (const auto& [net, ranks, layout, state] :
       combinations(std::vector<std::string>{"mlp", "conv", "tied"}, std::vector{1, 2, 3, 4},
                    std::vector<std::string>{"fp32", "bf16", "bf16-nomaster"},
                    std::vector{OptimizerState::bf16, OptimizerState::int8})) {
    const Result whole = train(state_case(net, ranks, 0, layout, state));
    for (int stage = 1; stage < 4; ++stage) {
      const Case run = state_case(net, ranks, stage, layout, state);
      expect_same(train(run), whole, str(run.describe(), ", ", state));
    }
  }
  for (const OptimizerState state : {OptimizerState::bf16, OptimizerState::int8}) {
    const WideRun whole = train_wide(3, state_case("", 3, 0, "bf16", state).options);
    for (int stage = 1; stage < 4; ++stage) {
      const WideRun sharded = train_wide(3, state_case("", 3, stage, "bf16", state).options);
      EXPECT_EQ(sharded.hash, whole.hash) << stage << " " << name(state);
    }
  }
}

// One step at a time: the fp32 rule, then each element rounded by the slow reference.
TEST(SmallMoments, EqualTheRuleWithRoundedMoments) {
  for (const OptimizerState state : {OptimizerState::bf16, OptimizerState::int8}) {
    over(1, [&](const comm::Group& group) {
      const Case run = state_case("", 1, 0, "fp32", state);
      auto net = std::make_shared<Wide>();
      net->initialize(7);
      Engine engine(net, group, run.options);
      std::map<std::string, std::vector<float>> values, moments[2];
      for (const auto& [param, value] : engine.full_parameters()) {
        const auto n = static_cast<std::size_t>(value.numel());
        values[param].assign(value.data_ptr<float>(), value.data_ptr<float>() + n);
        for (auto& moment : moments) moment[param].resize((n + 15) / 16 * 16);
      }
      for (int step = 1; step <= 3; ++step) {
        engine.backward(forward_loss(engine, *net, net->batch(batch_seed(step, 0, 0))));
        const auto grads = engine.full_gradients();
        const double norm = engine.step().grad_norm;
        for (const auto& [param, grad] : grads) {
          std::vector<float>& p = values[param];
          kernels::ParamShard shard;
          shard.param = p.data();
          shard.grad = grad.const_data_ptr();
          shard.count = p.size();
          const rules::Step how{0.02, grad.dim() >= 2 ? 0.01 : 0, step,
                                std::min(1.0, 1 / (norm + 1e-6))};
          kernels::update(AdamW{.lr = 0.02}, how, shard, moments[0][param].data(),
                          moments[1][param].data());
          for (int m = 0; m < 2; ++m) {
            std::vector<float>& moment = moments[m][param];
            const std::uint64_t stream = stream_of(str(param, "/moment", m + 1));
            if (state == OptimizerState::bf16) {
              for (std::size_t i = 0; i < p.size(); ++i) {
                moment[i] = from_bf16(
                    kernels::reference::to_bf16_stochastic(moment[i], i, stream, 5, step));
              }
              continue;
            }
            const auto code = m == 0 ? kernels::MomentCode::plain : kernels::MomentCode::root;
            std::vector<std::byte> bytes(moment.size() / 16 * 17);
            kernels::reference::encode_moments(code, moment.data(), bytes.data(),
                                               moment.size() / 16, {0, stream, 5, step});
            kernels::reference::decode_moments(code, bytes.data(), moment.data(),
                                               moment.size() / 16);
          }
        }
      }
      for (const auto& [param, value] : engine.full_parameters()) {
        EXPECT_EQ(std::memcmp(value.const_data_ptr(), values[param].data(), value.nbytes()), 0)
            << param;
      }
      for (const StateShard& shard : engine.state(StateScope::held)) {
        if (shard.state == "param") continue;
        const at::Tensor got = shard.read().to(at::kFloat);
        const std::vector<float>& wanted = moments[shard.state == "moment1" ? 0 : 1][shard.param];
        EXPECT_EQ(std::memcmp(got.const_data_ptr(), wanted.data(), got.nbytes()), 0)
            << shard.param << " " << shard.state;
      }
    });
  }
}

// Values by "param state".
using WholeState = std::map<std::string, at::Tensor>;

TEST(SmallMoments, StateMovesToAnyNumberOfRanksExactly) {
  const TemporaryFolder folder;
  for (const auto& [state, layout, from, to, on_disk] :
       combinations(kStates, std::vector<std::string>{"fp32", "bf16", "bf16-nomaster"},
                    std::vector{std::pair(1, 0), std::pair(3, 1), std::pair(2, 3)},
                    std::vector{std::pair(2, 0), std::pair(4, 3), std::pair(1, 2)},
                    std::vector{false, true})) {
    WholeState saved;
    StepCounts progress;
    std::map<std::string, std::int64_t> sizes;
    std::mutex guard;
    const auto options = [&](int stage) {
      Case run = state_case("", 1, stage, layout, state);
      if (on_disk) put_on_disk(run, folder);
      return run.options;
    };
    const auto collect = [&](Engine& engine, WholeState& into) {
      const at::NoGradGuard no_grad;
      for (const auto& [param, value] : engine.full_parameters()) {
        const std::lock_guard lock(guard);
        sizes[param] = value.numel();
      }
      for (const StateShard& shard : engine.state(StateScope::owned)) {
        const std::lock_guard lock(guard);
        at::Tensor& whole = into[shard.param + " " + shard.state];
        if (!whole.defined()) whole = at::zeros({sizes.at(shard.param)}, shard.type());
        whole.narrow(0, shard.begin, shard.count()).copy_(shard.read());
      }
    };
    const auto step = [](Engine& engine, Wide& net, int index) {
      engine.backward(forward_loss(engine, net, net.batch(batch_seed(index, 0, 0))));
      engine.step();
    };
    over(from.first, [&](const comm::Group& group) {
      auto net = std::make_shared<Wide>();
      net->initialize(7);
      Engine engine(net, group, options(from.second));
      for (int s = 0; s < 3; ++s) step(engine, *net, s);
      collect(engine, saved);
      if (group.rank() == 0) progress = engine.progress();
    });
    WholeState again;
    over(to.first, [&](const comm::Group& group) {
      auto net = std::make_shared<Wide>();
      net->initialize(8);
      Engine engine(net, group, options(to.second));
      step(engine, *net, 9);  // state that is overwritten
      for (const StateShard& shard : engine.state(StateScope::held)) {
        const at::Tensor& whole = saved.at(shard.param + " " + shard.state);
        // In parts that do not end at blocks.
        for (std::int64_t at = 0; at < shard.count(); at += 1001) {
          StateShard part = shard;
          const std::int64_t count = std::min<std::int64_t>(1001, shard.count() - at);
          if (shard.stored) {
            part.stored_begin += at;
            part.stored_count = count;
          } else {
            part.values = shard.values.narrow(0, at, count);
          }
          const at::NoGradGuard no_grad;
          part.write(whole.narrow(0, shard.begin + at, count));
        }
      }
      engine.resume(progress);
      collect(engine, again);
    });
    ASSERT_EQ(again.size(), saved.size());
    for (const auto& [name, values] : saved) {
      EXPECT_TRUE(again.at(name).equal(values)) << name << " " << tessera::name(state) << layout;
    }
  }
}

TEST(SmallMoments, NewEngineContinuesWithTheSameBits) {
  for (const OptimizerState state : {OptimizerState::bf16, OptimizerState::int8}) {
    for (int stage = 0; stage < 4; ++stage) {
      over(2, [&](const comm::Group& group) {
        const Options options = state_case("", 2, stage, "bf16-nomaster", state).options;
        auto net = std::make_shared<Wide>(), other = std::make_shared<Wide>();
        net->initialize(7);
        other->initialize(8);
        const auto step = [&](Engine& engine, Wide& of, int index) {
          engine.backward(forward_loss(engine, of, of.batch(batch_seed(index, group.rank(), 0))));
          engine.step();
        };
        Engine engine(net, group, options), copy(other, group, options);
        for (int s = 0; s < 3; ++s) step(engine, *net, s);
        {
          const at::NoGradGuard no_grad;
          const auto from = engine.state(StateScope::held), to = copy.state(StateScope::held);
          for (std::size_t i = 0; i < from.size(); ++i) to[i].write(from[i].read());
        }
        copy.resume(engine.progress());
        for (int s = 3; s < 6; ++s) {
          step(engine, *net, s);
          step(copy, *other, s);
          EXPECT_EQ(copy.params_hash(), engine.params_hash()) << stage << " " << name(state);
        }
      });
    }
  }
}

TEST(SmallMoments, MemoryEqualsTheFormula) {
  memory::install();
  for (const OptimizerState state : kStates) {
    for (int stage = 0; stage < 4; ++stage) {
      const auto ledger = std::make_shared<memory::Ledger>("a rank");
      Options options = state_case("", 2, stage, "bf16", state).options;
      over(2, [&](const comm::Group& group) {
        auto net = std::make_shared<Wide>();
        Options mine = options;
        if (group.rank() == 0) mine.ledger = ledger;
        const Engine engine(net, group, mine);
        if (group.rank() > 0) return;
        const double padded = static_cast<double>(engine.traveling_param_bytes()) / 2;
        StateLayout layout = mine.layout;
        layout.moments = 2 * bytes_per_moment(state);
        EXPECT_NEAR(ledger->counts()[MemoryCategory::optimizer].now,
                    planner::state_bytes(layout, stage, padded, 2).optimizer, 3 * 64)
            << stage << " " << name(state);
      });
    }
  }
}

TEST(SmallMoments, UnsupportedOptimizersAndTypesAreErrors) {
  over(1, [&](const comm::Group& group) {
    const auto made = [&](const Options& options, at::ScalarType type = at::kFloat) {
      auto net = make_net("mlp");
      net->to(type);
      return error_of([&] { const Engine engine(net, group, options); });
    };
    Options options = state_case("mlp", 1, 0, "fp32", OptimizerState::int8).options;
    EXPECT_TRUE(contains(made(options, at::kDouble), "optimizer_state int8: parameter"));
    options.optimizer = SGD{.momentum = 0.9};
    EXPECT_EQ(made(options),
              "optimizer_state int8: got sgd, must be adamw. Use optimizer_state fp32");
    options.optimizer = Muon{};
    EXPECT_TRUE(contains(made(options), "got muon, must be adamw"));
    options.optimizer_state = OptimizerState::fp32;
    options.offload = parse_offload("optimizer", "/tmp");
    EXPECT_TRUE(contains(made(options), "offload of the optimizer: got muon"));
    EXPECT_TRUE(contains(error_of([] { parse_offload("params", "/tmp"); }), "must be optimizer"));
    EXPECT_TRUE(contains(error_of([] { parse_offload("optimizer", ""); }), "--offload-dir"));
    EXPECT_TRUE(contains(error_of([] { parse_offload("none", "/tmp"); }), "without --offload"));
  });
}

TEST(Offload, KeepsTheBitsAtEveryStage) {
  const TemporaryFolder folder;
  const std::vector<Optimizer> optimizers = {AdamW{.lr = 0.02}, SGD{.lr = 0.02, .momentum = 0.9},
                                             SGD{.lr = 0.02}, Lion{.lr = 0.002}};
  for (const auto& [net, ranks, layout, optimizer, stage] :
       combinations(std::vector<std::string>{"mlp", "conv", "tied"}, std::vector{1, 2, 3},
                    std::vector<std::string>{"fp32", "bf16", "bf16-nomaster"},
                    std::vector<std::size_t>{0, 1, 2, 3}, std::vector{0, 1, 2, 3})) {
    Case run = state_case(net, ranks, stage, layout, OptimizerState::fp32);
    run.options.optimizer = optimizers[optimizer];
    const Result in_memory = train(run);
    put_on_disk(run, folder);
    expect_same(train(run), in_memory, run.describe());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
}

TEST(Offload, LargeStateKeepsTheBitsAndLeavesMemory) {
  memory::install();
  const TemporaryFolder folder;
  for (const OptimizerState state : kStates) {
    for (int stage = 0; stage < 4; ++stage) {
      Options options = state_case("", 2, stage, "bf16", state).options;
      const WideRun in_memory = train_wide(2, options);
      options.offload = parse_offload("optimizer", folder.path);
      const auto ledger = std::make_shared<memory::Ledger>("rank 0");
      const WideRun on_disk = train_wide(2, options, ledger);
      EXPECT_EQ(on_disk.hash, in_memory.hash) << stage << " " << name(state);
      EXPECT_EQ(on_disk.losses, in_memory.losses) << stage << " " << name(state);
      EXPECT_EQ(ledger->counts()[MemoryCategory::optimizer].peak, 0);
    }
  }
}

TEST(Offload, MissingFolderIsAnError) {
  over(1, [&](const comm::Group& group) {
    Options options = state_case("mlp", 1, 0, "fp32", OptimizerState::fp32).options;
    options.offload = parse_offload("optimizer", "/nonexistent/folder");
    EXPECT_EQ(error_of([&] { const Engine engine(make_net("mlp"), group, options); }),
              "The folder for offloaded state, \"/nonexistent/folder\", does not exist. Create it");
  });
}

// As on a full disk, the error comes when the engine is made.
TEST(Offload, TooLittleSpaceIsAnErrorBeforeTraining) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string error;
  over(1, [&](const comm::Group& group) {
    Options options = state_case("", 1, 0, "fp32", OptimizerState::fp32).options;
    options.offload = parse_offload("optimizer", folder.path);
    error = error_of([&] { const Engine engine(std::make_shared<Wide>(), group, options); });
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(contains(error, "cannot hold")) << error;
  EXPECT_TRUE(contains(error, "of optimizer state: File too large")) << error;
}

// The system removes a file without a name when its process ends, however it ends.
TEST(Offload, FilesHaveNoName) {
  const TemporaryFolder folder;
  over(1, [&](const comm::Group& group) {
    Options options = state_case("", 1, 0, "fp32", OptimizerState::fp32).options;
    options.offload = parse_offload("optimizer", folder.path);
    const Engine engine(std::make_shared<Wide>(), group, options);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path));
  });
}

}  // namespace
}  // namespace tessera::zero::test
