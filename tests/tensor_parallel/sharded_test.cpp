// What is random does not depend on how it is cut.

#include "tessera/tensor_parallel/sharded.h"

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/tensor_parallel/dropout.h"
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

TEST(Sharded, SpecsAreOfAllParametersInTheirOrder) {
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
  EXPECT_EQ(specs[0].tp_dim, -1);
  EXPECT_EQ(specs[1].tp_dim, -1);
  EXPECT_EQ(specs[3].tp_dim, 0);
  EXPECT_EQ(specs[5].tp_dim, 1);
}

TEST(Sharded, EveryRankStartsWithItsPartOfTheSameNumbers) {
  ShardedNet alone{Axis{}};
  initialise(alone, 0, 1, 11);
  const test::Named wanted = test::parameters_of(alone);
  const Philox random(11, stream_of("qkv.weight"));
  EXPECT_EQ(wanted.at("qkv.weight")[4][2].item<float>(), 0.02f * random.normal(14));
  for (const int tp : {2, 4}) {
    const auto ranks = test::each_rank<test::Named>(tp, [&](const comm::Group& group) {
      ShardedNet net(Axis{group});
      EXPECT_EQ(find_specs(net), find_specs(alone));
      initialise(net, group.rank(), tp, 11);
      return test::parameters_of(net);
    });
    for (const auto& [name, whole] : test::wholes_of(find_specs(alone), ranks)) {
      EXPECT_TRUE(whole.equal(wanted.at(name))) << name;
    }
  }
}

TEST(Dropout, DependsOnTheKeyAndTheElementAlone) {
  const at::Tensor x = torch::ones({3, 8, 10});
  const RandomKey key{.seed = 1, .operation = "blocks.0.dropout", .step = 2, .micro_batch = 3};
  const at::Tensor whole = dropout(x, 0.3, key);
  for (std::int64_t part = 0; part < 4; ++part) {  // along the sequence, and along the columns
    EXPECT_TRUE(dropout(x.narrow(1, 2 * part, 2), 0.3, key, {{3, 8, 10}, {0, 2 * part, 0}})
                    .equal(whole.narrow(1, 2 * part, 2)));
  }
  EXPECT_TRUE(dropout(x.narrow(2, 5, 5).narrow(0, 1, 2), 0.3, key, {{3, 8, 10}, {1, 0, 5}})
                  .equal(whole.narrow(2, 5, 5).narrow(0, 1, 2)));
  for (const RandomKey& other :
       {RandomKey{2, key.operation, 2, 3}, RandomKey{1, "blocks.1.dropout", 2, 3},
        RandomKey{1, key.operation, 3, 3}, RandomKey{1, key.operation, 2, 4}}) {
    EXPECT_FALSE(dropout(x, 0.3, other).equal(whole));
  }
  EXPECT_TRUE(dropout(x, 0, key).equal(x));
  EXPECT_THROW(dropout(x, 1, key), UsageError);
  EXPECT_THROW(dropout(x, 0.3, key, {{3, 8, 10}, {0, 1, 0}}), UsageError);
}

TEST(Dropout, DropsAsManyAsItSaysAndKeepsTheMean) {
  const at::Tensor x = torch::ones({200, 500}).requires_grad_();
  const at::Tensor y = dropout(x, 0.2, {.seed = 5, .operation = "op"});
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y.detach()));
  EXPECT_NEAR((y == 0).to(torch::kFloat).mean().item<double>(), 0.2, 0.005);
  EXPECT_NEAR(y.mean().item<double>(), 1.0, 0.01);
}

}  // namespace
}  // namespace tessera::tensor_parallel
