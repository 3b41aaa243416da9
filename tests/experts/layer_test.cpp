// Compares the layer on one rank with the reference.

#include "tessera/experts/layer.h"

#include <ATen/Parallel.h>

#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/recompute.h"
#include "tests/experts/reference.h"
#include "tests/text.h"

namespace tessera::experts {
namespace {

using test::Case;

Case base() {
  Case of;
  of.layer.hidden = 12;
  of.layer.experts = {.count = 5, .per_token = 2, .width = 6};
  of.layer.label = "blocks.3.experts";
  return of;
}

double tolerance_of(const Case& of) { return of.type == at::kFloat ? 2e-6 : 3e-2; }

std::shared_ptr<const nn::Pass> open_pass(const Case& of) {
  return std::make_shared<const nn::Pass>(test::pass_of(of));
}

void compare(const Case& of, bool training = true) {
  const std::string text = of.text();
  torch::manual_seed(3);
  MixtureOfExperts layer = test::make_layer(of);
  layer->train(training);
  const at::Tensor values = torch::randn({of.batch, of.tokens, of.layer.hidden}).to(of.type);
  const at::Tensor dy = torch::randn(values.sizes()).to(of.type);
  const at::Tensor exact = values.to(torch::kDouble).requires_grad_();
  test::Result wanted = test::reference(of, layer, exact, training);
  const nn::Pass pass = test::pass_of(of);
  ((wanted.y * dy.to(torch::kDouble)).sum() + wanted.loss * (pass.row_weight * 3)).backward();

  const nn::PassScope scope(open_pass(of));
  const at::Tensor x = values.clone().requires_grad_();
  const at::Tensor y = layer->forward(x);
  EXPECT_EQ(y.scalar_type(), of.type) << text;
  y.backward(dy);
  const double limit = tolerance_of(of);
  EXPECT_LE(test::difference(y, wanted.y), limit) << text;
  EXPECT_LE(test::difference(x.grad(), exact.grad()), 2 * limit) << "x, " << text;
  for (const auto& param : layer->named_parameters()) {
    const at::Tensor& expected = wanted.params.at(param.key()).grad();
    ASSERT_EQ(param.value().grad().defined(), expected.defined()) << param.key() << ", " << text;
    if (!expected.defined()) continue;
    // Gradients of the router can cancel to almost 0.
    if (expected.abs().max().item<double>() < 1e-12) continue;
    EXPECT_LE(test::difference(param.value().grad(), expected), 4 * limit)
        << param.key() << ", " << text;
  }
  if (training) test::expect_equal_loads(layer->take_load(), wanted.load, 1e-5, text);
  EXPECT_EQ(layer->take_load().routed, 0);
}

TEST(MixtureOfExperts, MatchesAPlainLoop) {
  for (const std::int64_t count : {1, 2, 5, 64}) {
    for (const std::int64_t k :
         {std::int64_t{1}, std::int64_t{2}, std::min<std::int64_t>(8, count), count}) {
      if (k > count) continue;
      Case of = base();
      of.layer.experts.count = count;
      of.layer.experts.per_token = k;
      compare(of);
    }
  }
}

TEST(MixtureOfExperts, SupportsTheActivationFunctionsOfDenseLayers) {
  for (const bool biases : {false, true}) {
    for (const bool gated : {true, false}) {
      for (const Activation activation :
           {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
        if (!gated && activation == Activation::silu) continue;
        for (const std::int64_t shared : {0, 4}) {
          Case of = base();
          of.layer.gated = gated;
          of.layer.activation = activation;
          of.layer.biases = biases;
          of.layer.experts.shared_width = shared;
          compare(of);
        }
      }
    }
  }
}

TEST(MixtureOfExperts, RoutesByScoresBiasAndScale) {
  for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
    for (const bool normalized : {true, false}) {
      for (const bool bias : {false, true}) {
        Case of = base();
        of.layer.experts.scores = scores;
        of.layer.experts.normalized = normalized;
        of.layer.experts.selection_bias = bias;
        of.layer.experts.scale = 2.5;
        of.layer.experts.balance_loss = 0.3;
        of.layer.experts.z_loss = 0.2;
        compare(of);
        of.layer.experts.shared_width = 4;
        of.layer.experts.shared_gate = true;
        of.layer.experts.per_token = 3;
        compare(of);
      }
    }
  }
}

TEST(MixtureOfExperts, DropsTokensBeyondTheCapacity) {
  for (const double capacity : {0.25, 0.5, 1.0, 1.5, 100.0}) {
    Case of = base();
    of.tokens = 11;
    of.layer.biases = true;
    of.layer.experts.capacity = capacity;
    of.layer.experts.balance_loss = 0.1;
    of.layer.experts.z_loss = 0.1;
    compare(of);
    of.row_tokens = 7;
    of.layer.experts.scores = RouterScores::sigmoid;
    compare(of);
  }
}

TEST(MixtureOfExperts, SendsNoPaddingToExperts) {
  Case of = base();
  of.layer.experts.balance_loss = of.layer.experts.z_loss = 0.5;
  for (const std::int64_t tokens : {1, 4, 6}) {
    of.row_tokens = tokens;
    compare(of);
  }
}

TEST(MixtureOfExperts, JitterDependsOnSampleAndPositionOnly) {
  Case of = base();
  of.layer.experts.jitter = 0.3;
  of.layer.experts.z_loss = 0.1;
  compare(of);
  compare(of, /*training=*/false);
}

TEST(MixtureOfExperts, ComputesInBfloat16) {
  for (const bool gated : {true, false}) {
    Case of = base();
    of.type = at::kBFloat16;
    of.layer.hidden = 32;
    of.layer.experts.width = 16;
    of.layer.experts.count = 4;
    of.layer.gated = gated;
    of.layer.biases = true;
    of.layer.activation = gated ? Activation::silu : Activation::gelu_tanh;
    of.layer.experts.shared_width = 8;
    of.layer.experts.shared_gate = true;
    compare(of);
  }
}

TEST(MixtureOfExperts, AcceptsEmptyBatches) {
  for (const std::int64_t tokens : {0, 4}) {
    Case of = base();
    of.layer.experts.balance_loss = 0.1;
    of.layer.experts.capacity = 1;
    MixtureOfExperts layer = test::make_layer(of);
    const nn::PassScope scope(open_pass(of));
    const at::Tensor x = torch::randn({tokens == 0 ? 2 : 0, tokens, of.layer.hidden});
    const at::Tensor in = x.clone().requires_grad_();
    const at::Tensor y = layer->forward(in);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_FALSE(layer->named_parameters()["0.fc.weight"].grad().defined());
  }
}

TEST(MixtureOfExperts, RecomputesWithTheSameGradientsAndCountsOnce) {
  Case of = base();
  of.layer.experts.jitter = 0.2;
  of.layer.experts.balance_loss = 0.2;
  of.layer.experts.shared_width = 4;
  const nn::PassScope scope(open_pass(of));
  const at::Tensor values = torch::randn({of.batch, of.tokens, of.layer.hidden});
  std::vector<std::vector<at::Tensor>> all;
  for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
    MixtureOfExperts layer = test::make_layer(of);
    const at::Tensor x = values.clone().requires_grad_();
    const at::Tensor y = nn::recompute(
        mode, [layer](const at::Tensor& in) mutable { return layer->forward(in).mul(2); }, x);
    y.square().sum().backward();
    std::vector<at::Tensor> results = {y, x.grad()};
    for (const at::Tensor& param : layer->parameters()) results.push_back(param.grad());
    EXPECT_EQ(layer->take_load().routed, of.batch * of.tokens);
    all.push_back(results);
  }
  for (std::size_t mode = 1; mode < all.size(); ++mode) {
    for (std::size_t i = 0; i < all[0].size(); ++i) {
      ASSERT_EQ(all[mode][i].defined(), all[0][i].defined());
      if (!all[0][i].defined()) continue;
      EXPECT_TRUE(at::equal(all[mode][i], all[0][i])) << mode << " " << i;
    }
  }
}

TEST(MixtureOfExperts, WithoutAPassTheLossesHaveNoGradient) {
  Case of = base();
  Case plain = of;
  of.layer.experts.balance_loss = of.layer.experts.z_loss = 10;
  const at::Tensor x = torch::randn({of.batch, of.tokens, of.layer.hidden});
  at::Tensor grads[2];
  for (const int i : {0, 1}) {
    MixtureOfExperts layer = test::make_layer(i == 0 ? of : plain);
    layer->forward(x).square().sum().backward();
    grads[i] = layer->named_parameters()["router.weight"].grad();
  }
  EXPECT_TRUE(at::equal(grads[0], grads[1]));
}

TEST(MixtureOfExperts, ScalesTheGradientsOfTheLosses) {
  Case of = base();
  of.layer.experts.z_loss = 1;
  const at::Tensor x = torch::randn({of.batch, of.tokens, of.layer.hidden});
  const at::Tensor exact = x.to(torch::kDouble);
  for (const bool scaled : {false, true}) {
    MixtureOfExperts layer = test::make_layer(of);
    test::Result wanted = test::reference(of, layer, exact);
    (wanted.loss * (scaled ? 3 * 0.25 : 0.25)).backward();
    nn::Pass pass = test::pass_of(of);
    if (!scaled) pass.loss_scale = at::Tensor();
    const nn::PassScope scope(std::make_shared<const nn::Pass>(pass));
    layer->forward(x).mul(0).sum().backward();
    EXPECT_LE(test::difference(layer->named_parameters()["router.weight"].grad(),
                               wanted.params.at("router.weight").grad()),
              1e-5);
  }
}

TEST(MixtureOfExperts, MovesTheSelectionBiasTowardsEvenLoads) {
  Case of = base();
  of.layer.experts.selection_bias = true;
  of.layer.experts.bias_rate = 0.5;
  MixtureOfExperts layer = test::make_layer(of);
  const at::Tensor bias = layer->named_buffers()["selection_bias"];
  const at::Tensor before = bias.clone();
  layer->update_selection_bias(torch::tensor({4, 0, 9, 3, 4}, torch::kLong));
  const at::Tensor moved = torch::tensor({0.0f, 0.5f, -0.5f, 0.5f, 0.0f});
  EXPECT_TRUE(at::allclose(bias - before, moved));
  EXPECT_THROW(layer->update_selection_bias(torch::zeros({4}, torch::kLong)), UsageError);
}

TEST(MixtureOfExperts, NamesItsParametersInOrder) {
  Case of = base();
  of.layer.biases = true;
  of.layer.experts.count = 2;
  of.layer.experts.shared_width = 8;
  of.layer.experts.shared_gate = true;
  of.layer.tensors = nn::ParamOptions::unallocated();
  MixtureOfExperts layer(Ranks(), of.layer);
  std::vector<std::string> names;
  for (const ParamSpec& spec : tensor_parallel::find_specs(*layer)) {
    names.push_back(spec.name);
    EXPECT_EQ(spec.of_expert, spec.name[0] == '0' || spec.name[0] == '1') << spec.name;
    EXPECT_EQ(layer->named_parameters()[spec.name].sizes(), spec.shape) << spec.name;
    EXPECT_TRUE(nn::is_unallocated(layer->named_parameters()[spec.name])) << spec.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "router.weight", "0.fc.weight", "0.fc.bias", "0.proj2.weight",
                       "0.proj2.bias", "1.fc.weight", "1.fc.bias", "1.proj2.weight", "1.proj2.bias",
                       "shared.fc.weight", "shared.fc.bias", "shared.proj2.weight",
                       "shared.proj2.bias", "shared_gate.weight"}));
}

TEST(MixtureOfExperts, SavesTheDocumentedBytes) {
  memory::install();
  Case of = base();
  of.batch = 2;
  of.tokens = 64;
  of.layer.hidden = 64;
  of.layer.experts = {.count = 16, .per_token = 4, .width = 32};
  const std::int64_t n = of.batch * of.tokens, pairs = n * 4;
  for (const double balance : {0.0, 0.1}) {
    of.layer.experts.balance_loss = balance;
    MixtureOfExperts layer = test::make_layer(of);
    const nn::PassScope scope(open_pass(of));
    const at::Tensor x = torch::randn({of.batch, of.tokens, of.layer.hidden}).requires_grad_();
    layer->forward(x);  // allocates the sums of the load
    const auto ledger = std::make_shared<memory::Ledger>();
    const memory::OwnerScope owner(ledger);
    const at::Tensor y = layer->forward(x);
    const auto kept = static_cast<std::int64_t>(ledger->counts().total.now) - y.nbytes();
    const std::int64_t expected =
        n * 16 * 4 + 12 * pairs + pairs * 64 * 4 + 8 * 16 + (balance > 0 ? 8 * 2 * 16 : 0);
    EXPECT_GE(kept, expected);
    EXPECT_LE(kept, expected + 1024);
  }
}

std::string usage_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(MixtureOfExperts, RejectsSizesThatDoNotFit) {
  const auto made = [](const std::function<void(LayerOptions&)>& change) {
    Case of = base();
    change(of.layer);
    return usage_error_of([&] { MixtureOfExperts(Ranks(), of.layer); });
  };
  EXPECT_TRUE(contains(made([](LayerOptions& o) { o.experts.per_token = 6; }),
                       "5 experts, 6 for each token"));
  EXPECT_TRUE(contains(made([](LayerOptions& o) { o.experts.width = 0; }), "of width 0"));
  EXPECT_TRUE(
      contains(made([](LayerOptions& o) { o.experts.shared_gate = true; }), "shared_width"));
  EXPECT_TRUE(contains(made([](LayerOptions& o) { o.gated = false; }), "silu without a gate"));
  const Case of = base();
  MixtureOfExperts layer = test::make_layer(of);
  EXPECT_EQ(usage_error_of([&] {
              layer->forward(torch::zeros({2, 3, 11}));
            }),
            "\"blocks.3.experts\": a tensor [2, 3, 11]. It must be [batch, tokens, 12].");
  nn::Pass pass;
  pass.part = {0, 2};
  const nn::PassScope scope(std::make_shared<const nn::Pass>(pass));
  EXPECT_TRUE(contains(usage_error_of([&] {
                         layer->forward(torch::zeros({2, 4, 12}));
                       }),
                       "Make the layer with LayerContext::experts()"));
}

TEST(MixtureOfExperts, RejectsSecondDerivatives) {
  const Case of = base();
  MixtureOfExperts layer = test::make_layer(of);
  const at::Tensor x = torch::randn({1, 3, 12}).requires_grad_();
  EXPECT_TRUE(contains(usage_error_of([&] {
                         layer->forward(x).sum().backward({}, /*retain_graph=*/true,
                                                          /*create_graph=*/true);
                       }),
                       "create_graph"));
}

}  // namespace
}  // namespace tessera::experts
