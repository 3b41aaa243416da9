// Reading parameters between steps, moving an engine, casting inputs, keeping single units.

#include <gtest/gtest.h>
#include <torch/serialize.h>
#include <torch/version.h>

#include <sstream>

#include "tessera/core/errors.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

torch::nn::Sequential squares(int count, std::int64_t width, std::uint64_t seed) {
  torch::nn::Sequential net;
  const at::NoGradGuard no_grad;
  for (int i = 0; i < count; ++i) {
    torch::nn::Linear layer(torch::nn::LinearOptions(width, width).bias(false));
    layer->weight.copy_(numbers({width, width}, seed + static_cast<std::uint64_t>(i)) /
                        std::sqrt(static_cast<double>(width)));
    net->push_back(layer);
  }
  return net;
}

using Train = DataParallel<torch::nn::Sequential>;

void one_step(Train& train, std::uint64_t seed, std::int64_t width) {
  train.backward(train(numbers({2, width}, seed)).to(at::kFloat).square().mean());
  train.step();
}

// Reading right after step() returns new values, or throws an error that names the call to make.
TEST(Reading, ReturnsNewValuesAfterAStep) {
  constexpr std::int64_t kWidth = 724;  // 8 layers: 4.2 million parameters
  for (int stage = 0; stage < 3; ++stage) {
    for (const bool overlap : {true, false}) {
      over(2, [&](const comm::Group& group) {
        const torch::nn::Sequential net = squares(8, kWidth, 3);
        Options options;
        options.stage = stage;
        options.overlap_param_gather = overlap;
        options.optimizer = AdamW{.lr = 0.01};
        Train train(net, group, options);
        for (std::uint64_t round = 0; round < 4; ++round) {
          one_step(train, 2 * round + static_cast<std::uint64_t>(group.rank()), kWidth);
          const at::NoGradGuard no_grad;
          std::vector<at::Tensor> read;
          const std::string message = error_of([&] {
            for (const at::Tensor& p : net->parameters()) read.push_back(p.clone());
          });
          std::ostringstream file;
          const std::string told_by_save = error_of([&] {
            torch::serialize::OutputArchive archive;
            net->save(archive);
            archive.save_to(file);
          });
          const bool must_succeed = stage == 0 || !overlap;
          EXPECT_EQ(message.empty(), told_by_save.empty()) << message << told_by_save;
          if (must_succeed || message.empty()) {
            EXPECT_EQ(message, "") << "stage " << stage;
          } else {
            EXPECT_TRUE(contains(message, "synchronize()")) << message;
            EXPECT_TRUE(contains(told_by_save, "synchronize()")) << told_by_save;
          }
          train.synchronize();
          const std::vector<at::Tensor> now = net->parameters();
          for (std::size_t i = 0; i < read.size(); ++i) {
            EXPECT_TRUE(at::equal(read[i], now[i])) << "stage " << stage << ", round " << round;
          }
          EXPECT_EQ(error_of([&] { net->parameters()[0].sum(); }), "");
        }
      });
    }
  }
}

TEST(Moving, MovedEngineContinuesTraining) {
  for (int stage = 0; stage < 4; ++stage) {
    std::vector<std::uint64_t> hashes;
    for (const bool move : {false, true}) {
      over(2, [&](const comm::Group& group) {
        Options options;
        options.stage = stage;
        options.gather = Gather::copy;
        options.micro_batches = 2;
        std::vector<Train> trains;
        trains.emplace_back(squares(2, 8, 3), group, options);
        const auto pass = [&](std::uint64_t seed) {
          trains.front().backward(trains.front()(numbers({2, 8}, seed)).square().mean());
        };
        for (std::uint64_t step = 0; step < 3; ++step) {
          {
            const Engine::NoSync no_sync(trains.front());
            pass(2 * step + static_cast<std::uint64_t>(group.rank()));
            // In the middle of a step, and of a NoSync scope.
            if (move)
              trains = std::vector<Train>(std::make_move_iterator(trains.begin()),
                                          std::make_move_iterator(trains.end()));
          }
          pass(20 + step);
          trains.front().step();
        }
        Train moved = std::move(trains.front());
        const std::uint64_t hash = moved.params_hash();
        if (group.rank() == 0) hashes.push_back(hash);
      });
    }
    EXPECT_EQ(hashes[0], hashes[1]) << "stage " << stage;
  }
}

TEST(Moving, AssignmentClosesTheOldEngine) {
  torch::nn::Sequential first = squares(2, 8, 3), second = squares(2, 8, 4);
  Train train(first, comm::Group());
  const at::Tensor loss = train(numbers({2, 8}, 1)).square().mean();
  train = Train(second, comm::Group());
  EXPECT_NO_THROW(Train(first, comm::Group())) << "its hooks are gone";
  // Hooks of the old engine do nothing.
  EXPECT_NO_THROW(loss.backward());
  one_step(train, 5, 8);
  EXPECT_EQ(train.steps(), 1);
}

TEST(CastInputs, Bf16ModelAcceptsFp32) {
  std::vector<std::uint64_t> hashes;
  for (int stage = 0; stage < 4; ++stage) {
    for (const Gather gather : {Gather::alias, Gather::copy}) {
      for (const bool cast_by_hand : {false, true}) {
        over(2, [&](const comm::Group& group) {
          Options options;
          options.stage = stage;
          options.gather = stage == 3 ? gather : Gather::automatic;
          options.layout = parse_state_layout("bf16");
          Train train(squares(3, 8, 3), group, options);
          for (std::uint64_t step = 0; step < 2; ++step) {
            const at::Tensor x =
                numbers({2, 8}, 2 * step + static_cast<std::uint64_t>(group.rank()))
                    .requires_grad_();
            const at::Tensor y = train(cast_by_hand ? x.to(at::kBFloat16) : x);
            EXPECT_EQ(y.scalar_type(), at::kBFloat16);
            train.backward(y.to(at::kFloat).square().mean());
            ASSERT_TRUE(x.grad().defined());
            EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
            EXPECT_GT(x.grad().abs().max().item<double>(), 0);
            train.step();
          }
          const std::uint64_t hash = train.params_hash();
          if (group.rank() == 0) hashes.push_back(hash);
        });
      }
    }
  }
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]);
}

// An inner unit may get fp32, too. Integers, and all inputs in the layout fp32, are not cast.
struct WidenImpl : torch::nn::Module {
  WidenImpl()
      : embed(register_module("embed", torch::nn::Embedding(5, 8))),
        units(register_module("units", squares(2, 8, 3))) {}
  at::Tensor forward(const at::Tensor& ids) {
    EXPECT_EQ(ids.scalar_type(), at::kLong);
    return units->forward(embed->forward(ids).to(at::kFloat));
  }
  torch::nn::Embedding embed;
  torch::nn::Sequential units;
};
TORCH_MODULE(Widen);

TEST(CastInputs, CastsInputsOfUnits) {
  const at::Tensor ids = at::arange(5, at::kLong);
  for (const bool cast : {true, false}) {
    Options options;
    options.layout = parse_state_layout("bf16");
    options.cast_inputs = cast;
    DataParallel<Widen> train(Widen(), comm::Group(), options);
    if (cast) {
      EXPECT_EQ(train(ids).scalar_type(), at::kBFloat16);
    } else {
      EXPECT_THROW(train(ids), c10::Error);
    }
  }
  DataParallel<Widen> plain{Widen(), comm::Group()};
  EXPECT_EQ(plain(ids).scalar_type(), at::kFloat);
}

// A unit that is kept is gathered once per micro-batch instead of twice.
TEST(KeepUnit, SavesOneGatherOfTheUnit) {
  constexpr int kUnits = 4;
  const auto sent = [&](const std::function<void(Options&)>& set) {
    std::uint64_t bytes = 0;
    over(2, [&](const comm::Group& group) {
      Options options;
      options.stage = 3;
      options.gather = Gather::copy;
      set(options);
      Train train(squares(kUnits, 16, 3), group, options);
      const std::uint64_t before = group.traffic().sent_bytes;
      one_step(train, 1, 16);
      if (group.rank() == 0) bytes = group.traffic().sent_bytes - before;
    });
    return bytes;
  };
  const std::uint64_t none = sent([](Options&) {});
  const std::uint64_t all = sent([](Options& o) { o.keep_params = true; });
  const auto keep = [&](std::vector<std::string> names, bool otherwise) {
    return sent([&](Options& o) {
      o.keep_params = otherwise;
      o.keep_unit = [names](const std::string& unit) {
        return std::find(names.begin(), names.end(), unit) != names.end();
      };
    });
  };
  ASSERT_GT(none, all);
  const std::uint64_t one = (none - all) / kUnits;
  EXPECT_EQ(none - all, one * kUnits);
  EXPECT_EQ(keep({}, true), none);
  EXPECT_EQ(keep({"1"}, false), none - one);
  EXPECT_EQ(keep({"0", "2"}, false), none - 2 * one);
  EXPECT_EQ(keep({"0", "1", "2", "3"}, false), all);
}

}  // namespace
}  // namespace tessera::zero::test
