// Vocabularies that the ranks do not divide, or that are rounded up: losses and gradients match
// those of a single process without padding, and the padding stays zero.

#include <torch/optim/adamw.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/ops.h"
#include "tessera/tensor_parallel/layers.h"
#include "tests/tensor_parallel/ranks.h"

namespace tessera::tensor_parallel {
namespace {

constexpr std::int64_t kWidth = 6, kTokens = 12;

// A table, with it or another one as the head.
struct PaddedNet : torch::nn::Module {
  PaddedNet(const Axis& a, std::int64_t v, bool is_tied, std::int64_t pad_to)
      : axis(a), vocab(v), tied(is_tied) {
    table = register_module(
        "table", VocabParallelEmbedding(
                     axis, EmbeddingOptions{.rows = vocab, .width = kWidth, .pad_to = pad_to}));
    if (tied) return;
    head = register_module(
        "head",
        ColumnParallelLinear(
            axis, LinearOptions{.in = kWidth, .out = vocab, .bias = false, .pad_to = pad_to}));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets) {
    const at::Tensor x = table->forward(ids).tanh();
    return vocab_parallel_cross_entropy(axis, x, tied ? table->weight : head->weight, targets,
                                        "head", vocab) *
           0.3;
  }

  Axis axis;
  std::int64_t vocab;
  bool tied;
  VocabParallelEmbedding table{nullptr};
  ColumnParallelLinear head{nullptr};
};

struct Trained {
  std::vector<double> losses;
  test::Named grads, params;  // first gradients, last parameters
  std::vector<ParamSpec> specs;
};

// AdamW with weight decay: nonzero padding would persist or grow.
Trained train(const Axis& axis, std::int64_t vocab, bool tied, std::int64_t pad_to,
              at::ScalarType type = torch::kFloat) {
  PaddedNet net(axis, vocab, tied, pad_to);
  initialize(net, axis.axes(), axis.coordinate(), 5, 0.5);
  net.to(type);
  const at::Tensor all = torch::arange(2 * kTokens, torch::kLong).view({2, kTokens});
  const at::Tensor ids = (all * 7 + 1).remainder(vocab);
  at::Tensor targets = (all * 5 + vocab - 1).remainder(vocab);
  targets[1][2] = -1;
  torch::optim::AdamW adamw(net.parameters(),
                            torch::optim::AdamWOptions(0.05).weight_decay(0.1).eps(1e-3));
  Trained result;
  for (int step = 0; step < 3; ++step) {
    adamw.zero_grad();
    const at::Tensor loss = net.loss(ids, targets);
    loss.backward();
    if (step == 0) {
      for (const auto& [name, grad] : test::gradients_of(net)) result.grads[name] = grad.clone();
    }
    adamw.step();
    result.losses.push_back(loss.item<double>());
  }
  result.params = test::parameters_of(net);
  result.specs = find_specs(net);
  return result;
}

TEST(Padding, LossesAndGradientsMatchASingleProcess) {
  for (const std::int64_t vocab : {3, 5, 101, 257}) {
    for (const bool tied : {true, false}) {
      const Trained wanted = train({}, vocab, tied, 1);
      for (const int tp : {1, 2, 3, 4}) {
        for (const std::int64_t pad_to : {1, 8}) {
          for (const bool sequence : {false, true}) {
            const bool overlap = sequence && pad_to == 8;
            SCOPED_TRACE(str("vocab ", vocab, tied ? " tied" : "", " tp ", tp, " pad to ", pad_to,
                             sequence ? " sequence" : ""));
            const auto ranks = test::each_rank<Trained>(tp, [&](const comm::Group& group) {
              return train({group, sequence && tp > 1, overlap && tp > 1}, vocab, tied, pad_to);
            });
            std::vector<test::Named> grads, params;
            for (const Trained& rank : ranks) {
              EXPECT_EQ(rank.losses, ranks[0].losses);
              ASSERT_EQ(rank.specs, wanted.specs);  // specs do not include padding
              grads.push_back(rank.grads);
              params.push_back(rank.params);
            }
            for (std::size_t i = 0; i < wanted.losses.size(); ++i) {
              EXPECT_NEAR(ranks[0].losses[i] / wanted.losses[i], 1, 1e-5);
            }
            // wholes_of also checks that the padding is zero.
            for (const auto& [name, whole] : test::wholes_of(ranks[0].specs, grads)) {
              test::expect_close(whole, wanted.grads.at(name), "gradient of " + name, 5e-5);
            }
            for (const auto& [name, whole] : test::wholes_of(ranks[0].specs, params)) {
              test::expect_close(whole, wanted.params.at(name), name, 2e-3);
            }
          }
        }
      }
    }
  }
}

TEST(Padding, WorksInBf16) {
  const Trained wanted = train({}, 101, true, 1, torch::kBFloat16);
  for (const int tp : {1, 3}) {
    const auto ranks = test::each_rank<Trained>(tp, [&](const comm::Group& group) {
      return train({group}, 101, true, 64, torch::kBFloat16);
    });
    std::vector<test::Named> params;
    for (const Trained& rank : ranks) params.push_back(rank.params);
    test::wholes_of(ranks[0].specs, params);
    EXPECT_NEAR(ranks[0].losses[0] / wanted.losses[0], 1, 1e-2);
  }
}

TEST(Padding, RejectsIdsAndTargetsInThePadding) {
  for (const int tp : {1, 3}) {
    test::over(tp, [&](const comm::Group& group) {
      const Axis axis{group};
      PaddedNet net(axis, 10, true, 8);
      initialize(net, axis.axes(), axis.coordinate(), 5, 0.5);
      const at::Tensor good = torch::full({1, 2}, 9, torch::kLong), bad = good + 1;
      EXPECT_NO_THROW(net.loss(good, good));
      EXPECT_THROW(net.loss(bad, good), UsageError);
      EXPECT_THROW(net.loss(good, bad), UsageError);
      EXPECT_THROW(vocab_parallel_cross_entropy({group}, torch::zeros({1, 2, kWidth}),
                                                net.table->weight, good, "head", 100),
                   UsageError);
    });
  }
}

// Any range of a rank's numbers matches the whole.
TEST(Padding, RangesOfInitialNumbersMatchTheWhole) {
  const std::vector<ParamSpec> specs = {
      {"table", {101, 7}, {{tessera::Axis::tp, 0, {}, 8}}},
      {"row", {13, 33}, {{tessera::Axis::tp, 1, {}, 1}}},
      {"qkv", {24, 5}, {{tessera::Axis::tp, 0, {{16, 4}, {4, 2}, {4, 2}}}}},
      {"whole", {300, 301}},
  };
  for (const ParamSpec& spec : specs) {
    const at::Tensor one = torch::empty(spec.shape);
    ParamSpec unpadded = spec;
    for (ParamSpec::Cut& cut : unpadded.cuts) cut.pad_to = 1;
    fill_normal(one, unpadded, {}, {}, 3, 0.5);
    for (const int tp : {1, 2, 4}) {
      const Axes axes{{tessera::Axis::tp, tp}};
      for (int t = 0; t < tp; ++t) {
        const Coordinate at{{tessera::Axis::tp, t}};
        at::Tensor whole = torch::full(local_shape(spec, axes, at), 7.0f);
        fill_normal(whole, spec, axes, at, 3, 0.5, 0.25);
        const at::Tensor flat = whole.view(-1);
        at::Tensor wanted = torch::zeros_like(flat);
        for (const tessera::Run& run : local_runs(spec, axes, at)) {
          wanted.narrow(0, run.local, run.count)
              .copy_(one.view(-1).narrow(0, run.whole, run.count) + 0.25);
        }
        EXPECT_TRUE(at::equal(flat, wanted)) << spec.name;
        const at::Tensor half = torch::empty(whole.sizes(), torch::kBFloat16);
        fill_normal(half, spec, axes, at, 3, 0.5, 0.25);
        EXPECT_TRUE(at::equal(half, whole.to(torch::kBFloat16))) << spec.name;
        for (const std::int64_t each : {std::int64_t{1}, std::int64_t{17}, std::int64_t{1000}}) {
          if (each == 1 && flat.numel() > 1000) continue;
          for (std::int64_t begin = 0; begin < flat.numel(); begin += each) {
            const at::Tensor out = torch::full({std::min(each, flat.numel() - begin)}, 7.0f);
            fill_normal_range(out, spec, axes, at, begin, 3, 0.5, 0.25);
            ASSERT_TRUE(at::equal(out, flat.narrow(0, begin, out.numel()))) << spec.name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
