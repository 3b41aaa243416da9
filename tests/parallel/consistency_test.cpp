// Ranks that were given different models or data, and layers that compute different results on each
// tensor-parallel rank.

#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/parallel/parallelize.h"
#include "tests/ranks.h"
#include "tests/text.h"

namespace tessera {
namespace {

using torch::nn::AnyModule;

constexpr std::int64_t kSameWidth = 6;

// A linear that is whole on every rank, followed by dropout.
struct SameMixImpl : torch::nn::Module {
  using Drop = std::function<at::Tensor(const at::Tensor&)>;
  explicit SameMixImpl(std::int64_t width = kSameWidth)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear(x).tanh();
    return x + (drop ? drop(y) : y);
  }
  torch::nn::Linear linear;
  Drop drop;
};
TORCH_MODULE(SameMix);

struct SameLossImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& wanted) {
    return at::mse_loss(x, wanted);
  }
};
TORCH_MODULE(SameLoss);

Layer same_mix(const std::string& name) {
  return {.name = name, .make = [](const auto&) { return AnyModule(SameMix()); }};
}
Layer same_loss() {
  return {.name = "loss", .make = [](const auto&) { return AnyModule(SameLoss()); }};
}

ParallelOptions same_options(int micro_batches = 2) {
  ParallelOptions options;
  options.micro_batches = micro_batches;
  options.initial = [](const ParamSpec& spec) {
    Initial initial = initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.4;
    return initial;
  };
  options.engine.optimizer = zero::SGD{.lr = 0.1};
  return options;
}

// 16 rows, divided over replicas and micro-batches of four.
std::vector<MicroBatch> same_batches(const comm::Mesh& mesh, int step, int micro_batches) {
  std::vector<MicroBatch> batches;
  for (int k = 0; k < micro_batches; ++k) {
    const std::int64_t first =
        (step * 16 + (mesh.dp().rank() * micro_batches + k) * 4) * kSameWidth;
    const at::Tensor x = at::arange(first, first + 4 * kSameWidth).view({4, kSameWidth});
    batches.push_back({(x * 0.7).sin().to(at::kFloat), (x * 0.3).cos().to(at::kFloat)});
  }
  return batches;
}

// Runs `body` on each rank. Returns the text of its UsageError, or of another rank's failure.
std::vector<std::string> errors_on(const Axes& axes,
                                   const std::function<void(const comm::Mesh&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(axes.world()));
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    errors[static_cast<std::size_t>(world.rank())] =
        error_of([&] { body(comm::Mesh(world, axes)); });
  });
  return errors;
}

void expect_words(const std::vector<std::string>& errors, const std::vector<std::string>& words) {
  for (std::size_t r = 0; r < errors.size(); ++r) {
    for (const std::string& word : words) {
      EXPECT_TRUE(contains(errors[r], word)) << "rank " << r << ": " << errors[r];
    }
  }
}

TEST(Consistency, NamesTheFirstLayerThatDiffersBetweenRanks) {
  for (const char* axes : {"pp=2", "tp=2", "dp=2,pp=2"}) {
    expect_words(errors_on(axes,
                           [](const comm::Mesh& mesh) {
                             const bool odd = mesh.world().rank() == 1;
                             ParallelModel model(
                                 {same_mix("a"), same_mix(odd ? "c" : "b"), same_loss()}, mesh,
                                 same_options());
                           }),
                 {"rank 0 has layer \"b\"", "rank 1 has layer \"c\"", "same list of layers"});
  }
  expect_words(errors_on("pp=2",
                         [](const comm::Mesh& mesh) {
                           std::vector<Layer> list = {same_mix("a"), same_mix("b"), same_loss()};
                           if (mesh.world().rank() == 1) list.erase(list.begin() + 1);
                           ParallelModel model(list, mesh, same_options());
                         }),
               {"rank 0 has layer \"b\"", "rank 1 has layer \"loss\""});
  expect_words(errors_on("pp=2",
                         [](const comm::Mesh& mesh) {
                           ParallelModel model({same_mix("a"), same_mix("b"), same_loss()}, mesh,
                                               same_options(2 + mesh.world().rank()));
                         }),
               {"rank 0 has micro_batches 2", "rank 1 has micro_batches 3"});
}

TEST(Consistency, NamesTheFirstParameterThatDiffersWithinAStage) {
  expect_words(errors_on("tp=2",
                         [](const comm::Mesh& mesh) {
                           std::vector<Layer> list = {same_mix("a"), same_mix("b"), same_loss()};
                           list[1].make = [&](const auto&) {
                             return AnyModule(SameMix(kSameWidth + mesh.world().rank()));
                           };
                           ParallelModel model(list, mesh, same_options());
                         }),
               {"rank 0 has \"b.linear.weight\" [6, 6]", "rank 1 has \"b.linear.weight\" [7, 7]"});
}

TEST(Consistency, NamesInputsThatDifferBetweenTensorParallelRanks) {
  for (const char* axes : {"tp=2", "tp=2,pp=2"}) {
    expect_words(errors_on(axes,
                           [](const comm::Mesh& mesh) {
                             ParallelModel model({same_mix("a"), same_mix("b"), same_loss()}, mesh,
                                                 same_options());
                             auto batches = same_batches(mesh, 0, 2);
                             if (mesh.coordinate().tp() == 1) batches[1].input.add_(1e-6);
                             model.step(batches);
                           }),
                 {"rank 0 has input of micro-batch 1 [4, 6]", "rank 1 has input of micro-batch 1",
                  "the same data"});
  }
}

// Random numbers drawn by a layer's own code are detected between the first and the second step.
TEST(Consistency, NamesParametersThatDivergeBetweenTensorParallelRanks) {
  const auto train = [](const comm::Mesh& mesh, int check, int steps) {
    std::vector<Layer> list = {same_mix("a"), same_mix("b"), same_loss()};
    list[1].make = [&](const auto&) {
      SameMix mix;
      mix->drop = [rank = mesh.world().rank()](const at::Tensor& y) {
        return y * (1 + 0.1 * rank);
      };
      return AnyModule(mix);
    };
    ParallelOptions options = same_options();
    options.check_replicas = check;
    ParallelModel model(list, mesh, options);
    for (int step = 0; step < steps; ++step) model.step(same_batches(mesh, step, 2));
  };
  for (const char* axes : {"tp=2", "tp=2,pp=2"}) {
    expect_words(errors_on(axes, [&](const comm::Mesh& mesh) { train(mesh, 100, 2); }),
                 {"after 1 step:", "rank 0 has parameter \"a.linear.weight\"", "MeshDropout",
                  "check_replicas"});
    for (const std::string& error :
         errors_on(axes, [&](const comm::Mesh& mesh) { train(mesh, 0, 4); })) {
      EXPECT_EQ(error, "") << axes;
    }
  }
}

TEST(Consistency, RejectsTorchDropoutWithTensorParallelism) {
  struct Way {
    std::function<AnyModule()> make;
    std::string word, instead;
  };
  const std::vector<Way> ways = {
      {[] { return AnyModule(torch::nn::Dropout(0.25)); }, "Dropout", "tessera::MeshDropout"},
      {[] { return AnyModule(torch::nn::AlphaDropout(0.25)); }, "AlphaDropout",
       "tessera::MeshDropout"},
      {[] { return AnyModule(torch::nn::Dropout2d(0.25)); }, "Dropout2d", "tessera::MeshDropout"}};
  for (const Way& way : ways) {
    const auto make = [&](const comm::Mesh& mesh) {
      ParallelModel model({same_mix("a"),
                           {.name = "noise", .make = [&](const auto&) { return way.make(); }},
                           same_loss()},
                          mesh, same_options());
    };
    expect_words(errors_on("tp=2,pp=2", make),
                 {"Layer \"noise\"", way.word, "rate 0.25", way.instead});
    for (const std::string& error : errors_on("dp=2", make)) EXPECT_EQ(error, "");
  }
  expect_words(errors_on("tp=2",
                         [&](const comm::Mesh& mesh) {
                           std::vector<Layer> list = {same_mix("a"), same_mix("b"), same_loss()};
                           list[1].make = [](const auto&) {
                             SameMix mix;
                             mix->register_module(
                                 "attention",
                                 torch::nn::MultiheadAttention(
                                     torch::nn::MultiheadAttentionOptions(6, 2).dropout(0.5)));
                             return AnyModule(mix);
                           };
                           ParallelModel model(list, mesh, same_options());
                         }),
               {"Layer \"b\"", "\"attention\"", "MultiheadAttention", "without dropout"});
  for (const std::string& error : errors_on("tp=2", [&](const comm::Mesh& mesh) {
         ParallelModel model(
             {same_mix("a"),
              {.name = "none",
               .make = [](const auto&) { return AnyModule(torch::nn::Dropout(0.0)); }},
              same_loss()},
             mesh, same_options());
         model.step(same_batches(mesh, 0, 2));
       })) {
    EXPECT_EQ(error, "");
  }
}

// Layers with their own dropout, replicated and on columns sharded over ranks.
std::vector<double> train_dropped(const Axes& axes, int micro_batches, const ParallelOptions& given,
                                  std::optional<double> rate) {
  std::vector<double> out;
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    const comm::Mesh mesh(world, axes);
    struct WideImpl : torch::nn::Module {
      WideImpl(const LayerContext& at, std::optional<double> rate)
          : up(register_module("up", tensor_parallel::ColumnParallelLinear(
                                         at.tp, at.linear("up", kSameWidth, 8)))),
            down(register_module("down", tensor_parallel::RowParallelLinear(
                                             at.tp, at.linear("down", 8, kSameWidth)))),
            inside(register_module(
                "inside", tensor_parallel::MeshDropout(
                              at.tp,
                              tensor_parallel::DropoutOptions{
                                  .rate = rate, .label = at.name + ".inside", .sharded = true}))),
            behind(register_module(
                "behind", tensor_parallel::MeshDropout(at.tp, at.dropout("behind", rate)))) {}
      at::Tensor forward(const at::Tensor& x) { return x + behind(down(inside(up(x)).tanh())); }
      tensor_parallel::ColumnParallelLinear up;
      tensor_parallel::RowParallelLinear down;
      tensor_parallel::MeshDropout inside, behind;
    };
    const auto wide = [&](const std::string& name) {
      return Layer{.name = name, .make = [&](const LayerContext& at) {
                     return AnyModule(std::make_shared<WideImpl>(at, rate));
                   }};
    };
    ParallelOptions options = given;
    options.micro_batches = micro_batches;
    options.check_replicas = 1;
    ParallelModel model({wide("a"), wide("b"), wide("c"), same_loss()}, mesh, options);
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) {
      losses.push_back(model.step(same_batches(mesh, step, micro_batches)).loss);
    }
    if (world.rank() == 0) out = losses;
  });
  return out;
}

TEST(MeshDropout, DropsTheSameOnEveryMesh) {
  const ParallelOptions options = same_options();
  const std::vector<double> alone = train_dropped("dp=1", 4, options, 0.3);
  const std::vector<double> none = train_dropped("dp=1", 4, options, 0.0);
  ASSERT_NE(alone, none);
  for (const char* mesh : {"dp=2", "tp=2", "pp=2", "dp=2,tp=2", "tp=2,pp=2"}) {
    for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::full}) {
      ParallelOptions how = options;
      how.recompute = recompute;
      const Axes axes(mesh);
      const std::vector<double> got = train_dropped(axes, 4 / axes.dp(), how, 0.3);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], alone[i], 1e-5 * alone[i]) << mesh << " " << i;
      }
    }
  }
}

TEST(MeshDropout, UsesTheRateOfTheOptionsUnlessItHasItsOwn) {
  ParallelOptions options = same_options();
  const std::vector<double> own = train_dropped("tp=2", 4, options, 0.3);
  const std::vector<double> none = train_dropped("tp=2", 4, options, std::nullopt);
  options.dropout = 0.3;
  EXPECT_EQ(train_dropped("tp=2", 4, options, std::nullopt), own);
  options.dropout = 0.9;
  EXPECT_EQ(train_dropped("tp=2", 4, options, 0.3), own);
  EXPECT_EQ(train_dropped("tp=2", 4, options, 0.0), none);
}

// Every micro-batch and every step drops different values.
TEST(MeshDropout, DropsDifferentValuesInEveryMicroBatchAndStep) {
  std::vector<at::Tensor> masks;
  const comm::Mesh mesh(comm::Group(), "dp=1");
  std::vector<Layer> list = {same_mix("a"), same_mix("b"), same_loss()};
  tensor_parallel::MeshDropout drop(tensor_parallel::Axis{},
                                    tensor_parallel::DropoutOptions{.rate = 0.5, .label = "drop"});
  list[1].make = [&](const auto&) {
    SameMix mix;
    mix->register_module("drop", drop);
    mix->drop = [&](const at::Tensor& y) {
      masks.push_back(drop(at::ones_like(y)).detach().clone());
      return drop(y);
    };
    return AnyModule(mix);
  };
  ParallelModel model(list, mesh, same_options());
  for (int step = 0; step < 2; ++step) model.step(same_batches(mesh, step, 2));
  ASSERT_EQ(masks.size(), 4u);
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const double zeros = at::eq(masks[i], 0).sum().item<double>();
    EXPECT_TRUE(zeros > 0 && zeros < static_cast<double>(masks[i].numel()));
    EXPECT_TRUE(at::logical_or(at::eq(masks[i], 0), at::eq(masks[i], 2)).all().item<bool>());
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(masks[i], masks[j])) << i << j;
  }
  const auto evaluated = model.predict(at::ones({2, kSameWidth}),
                                       [](torch::nn::Module&, const at::Tensor& x) { return x; });
  EXPECT_TRUE(at::equal(masks.back(), at::ones({2, kSameWidth}))) << "evaluation drops nothing";
  // Outside a step there is no mask.
  const std::string error = error_of([&] { drop(at::ones({2, 3})); });
  EXPECT_TRUE(contains(error, "outside a step")) << error;
  EXPECT_TRUE(contains(error_of([] {
                         tensor_parallel::MeshDropout wrong(
                             tensor_parallel::Axis{}, tensor_parallel::DropoutOptions{.rate = 1.0});
                       }),
                       "less than 1"));
}

}  // namespace
}  // namespace tessera
