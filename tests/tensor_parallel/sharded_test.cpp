// Random initial values do not depend on the sharding.

#include "tessera/tensor_parallel/sharded.h"

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/tensor_parallel/layers.h"
#include "tests/tensor_parallel/ranks.h"

namespace tessera::tensor_parallel {
namespace {

struct ShardedNet : torch::nn::Module {
  explicit ShardedNet(const Axis& axis) {
    scale = register_parameter("scale", torch::zeros({3}));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    qkv = register_module(
        "qkv",
        ColumnParallelLinear(
            axis,
            LinearOptions{.in = 3, .out = 20, .outputs = {{12, 4}, {4, 2, true}, {4, 2, true}}}));
    down = register_module("down", RowParallelLinear(axis, LinearOptions{.in = 8, .out = 5}));
    table = register_module("table",
                            VocabParallelEmbedding(axis, EmbeddingOptions{.rows = 12, .width = 3}));
  }
  at::Tensor scale;
  torch::nn::LayerNorm norm{nullptr};
  ColumnParallelLinear qkv{nullptr};
  RowParallelLinear down{nullptr};
  VocabParallelEmbedding table{nullptr};
};

TEST(Sharded, FindSpecsListsAllParametersInOrder) {
  ShardedNet net(Axis{});
  const auto specs = find_specs(net, "model");
  std::size_t next = 0;
  for (const auto& item : net.named_parameters()) {
    ASSERT_LT(next, specs.size());
    EXPECT_EQ(specs[next].name, "model." + item.key());
    EXPECT_EQ(specs[next].shape, item.value().sizes().vec());
    ++next;
  }
  EXPECT_EQ(next, specs.size());
  EXPECT_TRUE(specs[0].cuts.empty());
  EXPECT_TRUE(specs[1].cuts.empty());
  ASSERT_TRUE(specs[3].cut_along(tessera::Axis::tp) && specs[5].cut_along(tessera::Axis::tp));
  EXPECT_EQ(specs[3].cut_along(tessera::Axis::tp)->dim, 0);
  EXPECT_EQ(specs[5].cut_along(tessera::Axis::tp)->dim, 1);
}

TEST(Sharded, RanksStartWithShardsOfTheSameNumbers) {
  ShardedNet alone{Axis{}};
  initialize(alone, {}, {}, 11);
  const test::Named wanted = test::parameters_of(alone);
  const Philox random(11, stream_of("qkv.weight"));
  EXPECT_EQ(wanted.at("qkv.weight")[4][2].item<float>(), 0.02f * random.normal(14));
  for (const int tp : {2, 4}) {
    const auto ranks = test::each_rank<test::Named>(tp, [&](const comm::Group& group) {
      const Axis axis{group};
      ShardedNet net(axis);
      EXPECT_EQ(find_specs(net), find_specs(alone));
      initialize(net, axis.axes(), axis.coordinate(), 11);
      return test::parameters_of(net);
    });
    for (const auto& [name, whole] : test::wholes_of(find_specs(alone), ranks)) {
      EXPECT_TRUE(whole.equal(wanted.at(name))) << name;
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
