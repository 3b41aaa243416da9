// Initial values of a model: computed shard by shard, and those of the fp32 master copy.

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/unallocated.h"
#include "tessera/zero/initial_shards.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

constexpr std::int64_t kWidth = 64;
constexpr int kUnits = 16;
constexpr std::int64_t kUnitBytes = kWidth * kWidth * 4;

float first_value(const std::string& name, std::int64_t element, double seed) {
  double phase = seed;
  for (const char c : name) phase = phase * 1.7 + c;
  return static_cast<float>(std::sin(phase + 0.61 * static_cast<double>(element)) * 0.2);
}

InitialSource::Write values_by_seed(double seed) {
  return [seed](const std::string& name, std::int64_t begin, const at::Tensor& out) {
    EXPECT_EQ(out.dim(), 1);
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      out.data_ptr<float>()[i] = first_value(name, begin + i, seed);
    }
  };
}

struct SquareImpl : torch::nn::Module {
  explicit SquareImpl(bool allocated) {
    weight = register_parameter(
        "weight", allocated ? at::zeros({kWidth, kWidth}) : nn::unallocated({kWidth, kWidth}));
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(at::linear(x, weight)); }
  at::Tensor weight;
};

// Equal units, and parameters of the root that no shard divides, one of them transposed.
struct TowerImpl : torch::nn::Module {
  TowerImpl() = default;
  explicit TowerImpl(bool allocated) {
    for (int i = 0; i < kUnits; ++i) add(nn::Unit<SquareImpl>(allocated));
    const at::Tensor turned = at::empty({3, kWidth}).t();
    head = register_parameter("head", turned);
    bias = register_parameter("bias", at::empty({3}));
    if (allocated) return;
    nn::deallocate(head);
    nn::deallocate(bias);
  }
  void add(nn::Unit<SquareImpl> unit) {
    layers.push_back(register_module(str("layer", layers.size()), std::move(unit)));
  }
  void fill(double seed) {
    const at::NoGradGuard no_grad;
    for (const auto& entry : named_parameters()) {
      const at::Tensor& p = entry.value();
      values_by_seed(seed)(entry.key(), 0, p.as_strided({p.numel()}, {1}));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return at::matmul(x, head) + bias;
  }
  std::vector<nn::Unit<SquareImpl>> layers;
  at::Tensor head, bias;
};
TORCH_MODULE(Tower);

std::uint64_t trained(DataParallel<Tower>& train, int rank) {
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = numbers({4, kWidth}, batch_seed(step, rank, 0));
    train.backward(train(x).to(at::kFloat).square().mean());
    train.step();
  }
  return train.params_hash();
}

Options start_options(int stage, Gather gather, const std::string& layout) {
  Options options;
  options.stage = stage;
  options.gather = stage == 3 ? gather : Gather::automatic;
  options.layout = parse_state_layout(layout);
  options.optimizer = SGD{.lr = 0.05};
  options.bucket_bytes = 1;
  return options;
}

// A model without memory starts, shard by shard, with the same bits as one with memory.
TEST(Start, InitializingShardByShardGivesTheSameBits) {
  for (const std::string layout : {"fp32", "bf16", "bf16-nomaster"}) {
    std::optional<std::uint64_t> want;
    for (int stage = 0; stage < 4; ++stage) {
      for (const Gather gather : {Gather::alias, Gather::copy}) {
        if (stage < 3 && gather == Gather::copy) continue;
        for (const bool allocated : {true, false}) {
          over(4, [&](const comm::Group& group) {
            Tower net(allocated);
            Options options = start_options(stage, gather, layout);
            if (allocated) {
              net->fill(group.rank() == 0 ? 5 : 6);  // all ranks get rank 0's values
            } else {
              options.initial = values_by_seed(5);
            }
            DataParallel<Tower> train(net, group, options);
            const std::uint64_t hash = trained(train, group.rank());
            if (group.rank() != 0) return;
            if (!want) want = hash;
            EXPECT_EQ(hash, *want) << layout << ", stage " << stage << ", allocated " << allocated;
          });
        }
      }
    }
  }
}

// A model whose fp32 parameters exceed the memory limit starts and trains if its shards fit.
TEST(Start, NeedsMemoryForStateAndTwoUnits) {
  memory::install();
  constexpr std::int64_t full = kUnits * kUnitBytes;
  for (const Gather gather : {Gather::alias, Gather::copy}) {
    for (const std::string layout : {"fp32", "bf16"}) {
      over(4, [&](const comm::Group& group) {
        const auto ledger = std::make_shared<memory::Ledger>("a rank", full - full / 16);
        const memory::OwnerScope owner(ledger);
        EXPECT_THROW(Tower(true), std::exception) << "all of it should not fit";
        ledger->reset_peak();
        Tower net(false);
        EXPECT_LE(ledger->counts().total.peak, kUnitBytes);
        Options options = start_options(3, gather, layout);
        options.initial = values_by_seed(5);
        DataParallel<Tower> train(net, group, options);
        const memory::Usage start = ledger->counts().total;
        EXPECT_LE(start.peak, start.now + 2 * kUnitBytes) << layout << "\n" << ledger->report();
        ledger->reset_peak();
        train.params_hash();
        EXPECT_LE(ledger->counts().total.peak, start.now + 2 * kUnitBytes) << layout << "\n"
                                                                           << ledger->report();
        trained(train, group.rank());
      });
    }
  }
}

TEST(Start, DetectsDifferentInitialSourcesOnRanks) {
  for (const int stage : {0, 1, 3}) {
    for (const Gather gather : {Gather::alias, Gather::copy}) {
      over(3, [&](const comm::Group& group) {
        Options options = start_options(stage, gather, "bf16");
        options.initial = values_by_seed(group.rank() == 1 ? 8 : 7);
        EXPECT_THROW(DataParallel<Tower>(Tower(false), group, options), UsageError) << stage;
      });
    }
  }
}

TEST(Start, RejectsParametersWithoutMemoryOrValues) {
  const std::string message =
      error_of([] { DataParallel<Tower>(Tower(false), comm::Group(), Options{.stage = 2}); });
  EXPECT_NE(message.find("\"head\" has no memory"), std::string::npos) << message;
  EXPECT_NE(message.find("Options::initial"), std::string::npos) << message;
}

// Layers that initialize themselves, made one at a time: each rank keeps only its shards.
TEST(Start, InitialShardsShardsModulesAsTheyAreMade) {
  memory::install();
  for (const std::string layout : {"fp32", "bf16"}) {
    std::optional<std::uint64_t> want;
    for (int stage = 0; stage < 4; ++stage) {
      for (const Gather gather : {Gather::alias, Gather::copy}) {
        for (const bool at_once : {false, true}) {
          if ((stage < 3 && gather == Gather::copy) || (want && !at_once)) continue;
          over(4, [&](const comm::Group& group) {
            const auto ledger = std::make_shared<memory::Ledger>("a rank");
            const memory::OwnerScope owner(ledger);
            const double seed = group.rank() == 0 ? 5 : 6;  // rank 0's values are used
            Options options = start_options(stage, gather, layout);
            InitialShards shards(group);
            Tower net(std::make_shared<TowerImpl>());
            ledger->reset_peak();
            for (int i = 0; i < kUnits; ++i) {
              nn::Unit<SquareImpl> layer(true);
              values_by_seed(seed)(str("layer", i, ".weight"), 0, layer->weight.detach().view(-1));
              if (at_once) {
                shards.take(*layer, str("layer", i));
                EXPECT_TRUE(nn::is_unallocated(layer->weight));
              }
              net->add(layer);
            }
            if (at_once) {
              EXPECT_LE(ledger->counts().total.peak, kUnits * kUnitBytes / 4 + 2 * kUnitBytes);
            }
            net->head = net->register_parameter("head", at::empty({3, kWidth}).t());
            net->bias = net->register_parameter("bias", at::empty({3}));
            const at::NoGradGuard no_grad;
            values_by_seed(seed)("head", 0, net->head.as_strided({3 * kWidth}, {1}));
            values_by_seed(seed)("bias", 0, net->bias);
            if (at_once) {
              shards.take(*net);  // the remaining parameters of the root
              options.initial = shards.source();
            }
            const at::AutoGradMode grad(true);
            DataParallel<Tower> train(net, group, options);
            const std::uint64_t hash = trained(train, group.rank());
            if (group.rank() != 0) return;
            if (!want) want = hash;
            EXPECT_EQ(hash, *want) << layout << ", stage " << stage;
          });
        }
      }
    }
  }
}

TEST(Start, DetectsDifferentOrMissingInitialShards) {
  over(2, [](const comm::Group& group) {
    InitialShards shards(group, /*broadcast=*/false);
    nn::Unit<SquareImpl> layer(true);
    const at::NoGradGuard no_grad;
    layer->weight.fill_(group.rank());
    EXPECT_THROW(shards.take(*layer, "layer0"), UsageError);
    layer->weight.fill_(1);
    shards.take(*layer, "layer0");
    Options options = start_options(3, Gather::copy, "fp32");
    options.initial = shards.source();
    const std::string message =
        error_of([&] { DataParallel<Tower>(Tower(false), group, options); });
    EXPECT_NE(message.find("\"head\" was not taken"), std::string::npos) << message;
  });
}

// The fp32 master copy starts with the fp32 values, not with those rounded to bf16.
TEST(Start, MasterCopyStartsWithUnroundedValues) {
  for (int stage = 0; stage < 4; ++stage) {
    for (const Gather gather : {Gather::alias, Gather::copy}) {
      for (const bool allocated : {true, false}) {
        over(2, [&](const comm::Group& group) {
          Tower net(allocated);
          Options options = start_options(stage, gather, "bf16");
          if (allocated) {
            net->fill(group.rank() == 0 ? 5 : 6);
          } else {
            options.initial = values_by_seed(5);
          }
          DataParallel<Tower> train(net, group, options);
          Tower want(true);
          want->fill(5);
          for (const auto& [name, value] : train.full_parameters()) {
            EXPECT_TRUE(at::equal(value, want->named_parameters()[name])) << name << " " << stage;
          }
        });
      }
    }
  }
}

// Ranks with different noise would drift apart.
TEST(Start, RejectsDifferentSeedsOnRanksIfTheyAreUsed) {
  over(2, [](const comm::Group& group) {
    Options options;
    options.seed = static_cast<std::uint64_t>(group.rank());
    const auto message = [&] {
      return error_of([&] { Engine(std::make_shared<Mlp>(), group, options); });
    };
    EXPECT_EQ(message(), "");                              // no random numbers are used
    options.layout = parse_state_layout("bf16-nomaster");  // rounds stochastically
    const std::string noise = message();
    EXPECT_TRUE(contains(noise, "seed 1")) << noise;
  });
}

}  // namespace
}  // namespace tessera::zero::test
