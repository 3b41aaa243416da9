// Unusual layers: functions, a loss without parameters, and layers that behave differently in
// evaluation and in training.

#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/parallel/parallelize.h"
#include "tests/text.h"

namespace tessera {
namespace {

using torch::nn::AnyModule;

constexpr std::int64_t kOddWidth = 6, kOddRows = 16;
constexpr int kOddMicroBatches = 4;

struct OddMixImpl : torch::nn::Module {
  OddMixImpl() : linear(register_module("linear", torch::nn::Linear(kOddWidth, kOddWidth))) {}
  at::Tensor forward(const at::Tensor& x) { return x + linear(x).tanh(); }
  torch::nn::Linear linear;
};
TORCH_MODULE(OddMix);

struct OddLossImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& wanted) {
    return at::mse_loss(x, wanted);
  }
};
TORCH_MODULE(OddLoss);

// A dropout, a norm that tracks statistics, and one that is set to evaluation mode.
struct OddNoiseImpl : torch::nn::Module {
  OddNoiseImpl()
      : drop(register_module("drop", torch::nn::Dropout(0.5))),
        norm(register_module("norm", torch::nn::BatchNorm1d(kOddWidth))),
        still(register_module("still", torch::nn::BatchNorm1d(kOddWidth))) {
    still->eval();
  }
  at::Tensor forward(const at::Tensor& x) {
    trained = is_training();
    return x + drop(still(norm(x)));
  }
  torch::nn::Dropout drop;
  torch::nn::BatchNorm1d norm, still;
  bool trained = true;
};
TORCH_MODULE(OddNoise);

Layer odd_layer(const std::string& name, std::function<AnyModule()> make) {
  return {.name = name, .make = [make = std::move(make)](const auto&) { return make(); }};
}

Layer odd_mix(int i) {
  return odd_layer(str("mixes.", i), [] { return AnyModule(OddMix()); });
}

// Six layers, of which the third and the last have no parameters.
std::vector<Layer> odd_list() {
  return {odd_mix(0), odd_mix(1), odd_layer("curve", [] { return AnyModule(torch::nn::Tanh()); }),
          odd_mix(2), odd_mix(3), odd_layer("loss", [] { return AnyModule(OddLoss()); })};
}

ParallelOptions odd_options() {
  ParallelOptions options;
  options.micro_batches = kOddMicroBatches;
  options.seed = 3;
  options.initial = [](const ParamSpec& spec) {
    Initial initial = initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.3;
    return initial;
  };
  options.engine.clip_norm = 0.05;  // so that the norm over all stages matters
  options.engine.optimizer = zero::AdamW{.lr = 0.01};
  return options;
}

std::vector<MicroBatch> odd_batches(const comm::Mesh& mesh, int step) {
  const std::int64_t rows = kOddRows / mesh.axes().dp() / kOddMicroBatches;
  std::vector<MicroBatch> batches;
  for (int k = 0; k < kOddMicroBatches; ++k) {
    const std::int64_t first = step * kOddRows + (mesh.dp().rank() * kOddMicroBatches + k) * rows;
    const at::Tensor x =
        at::arange(first * kOddWidth, (first + rows) * kOddWidth).view({rows, kOddWidth});
    batches.push_back({(x * 0.7).sin().to(at::kFloat), (x * 0.3).cos().to(at::kFloat)});
  }
  return batches;
}

void on_mesh(const Axes& axes, const std::function<void(const comm::Mesh&)>& body) {
  comm::GroupOptions how;
  how.timeout = std::chrono::seconds(60);
  comm::run_threads(
      static_cast<int>(axes.world()),
      [&](std::shared_ptr<comm::Backend> backend) {
        body(comm::Mesh(comm::Group(std::move(backend)), axes));
      },
      how);
}

struct OddRun {
  std::vector<double> numbers;  // loss and norm of each step
  at::Tensor last;              // input of the loss for a batch, at the end
};

OddRun run_odd(const Axes& axes, const ParallelOptions& options) {
  OddRun out;
  on_mesh(axes, [&](const comm::Mesh& mesh) {
    ParallelModel model(odd_list(), mesh, options);
    OddRun mine;
    for (int step = 0; step < 3; ++step) {
      const zero::StepInfo info = model.step(odd_batches(mesh, step));
      mine.numbers.push_back(info.loss);
      mine.numbers.push_back(info.grad_norm);
    }
    mine.last = model.predict(at::ones({2, kOddWidth}),
                              [](torch::nn::Module&, const at::Tensor& x) { return x; });
    if (mesh.world().rank() == 0) out = mine;
  });
  return out;
}

zero::Optimizer torchs_sgd() {
  return zero::TorchOptimizer([](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.5));
  });
}

// A stage, or all stages of a rank, may consist of a function or the loss.
TEST(OddLayers, StagesWithoutParametersTrainLikeOneProcess) {
  struct Way {
    const char *mesh, *schedule;
    std::vector<int> split;
    int stage;
  };
  const std::vector<Way> ways = {
      {"pp=4", "1f1b", {2, 1, 2, 1}, 0},        {"pp=4", "1f1b", {2, 1, 2, 1}, 1},
      {"dp=2,pp=4", "1f1b", {2, 1, 2, 1}, 2},   {"dp=2,pp=4", "1f1b", {2, 1, 2, 1}, 3},
      {"pp=2", "interleaved", {2, 1, 2, 1}, 2},  // all of the second rank
      {"pp=2", "interleaved", {1, 2, 2, 1}, 3},  // the second chunk of the second rank
      {"dp=2,pp=2", "zb-v", {1, 2, 2, 1}, 1},   {"pp=2", "zb-h1", {5, 1}, 0}};
  for (const bool torchs : {false, true}) {
    ParallelOptions options = odd_options();
    if (torchs) options.engine.optimizer = torchs_sgd();
    const OddRun alone = run_odd("dp=1", options);
    ASSERT_NE(alone.numbers[0], alone.numbers[4]);
    for (const Way& way : ways) {
      options.schedule = way.schedule;
      options.split = way.split;
      options.engine.stage = way.stage;
      const std::string where = str(way.mesh, ", ", way.schedule, ", stage ", way.stage);
      const OddRun got = run_odd(way.mesh, options);
      ASSERT_EQ(got.numbers.size(), alone.numbers.size()) << where;
      for (std::size_t i = 0; i < got.numbers.size(); ++i) {
        EXPECT_NEAR(got.numbers[i], alone.numbers[i], 1e-4 * alone.numbers[i]) << where << " " << i;
      }
      EXPECT_TRUE(at::allclose(got.last, alone.last, 1e-3, 1e-4)) << where;
    }
  }
}

// Two parameters, which may belong to another layer, and may be registered in reverse order.
struct OddEndImpl : torch::nn::Module {
  OddEndImpl(const OddEndImpl* other, bool turned, double start) {
    const auto make = [&](const char* name) {
      const at::Tensor own = other == nullptr ? torch::full({kOddWidth}, start)
                             : *name == 'a'   ? other->a
                                              : other->b;
      (*name == 'a' ? a : b) = register_parameter(name, own);
    };
    make(turned ? "b" : "a");
    make(turned ? "a" : "b");
  }
  at::Tensor moved(const at::Tensor& x) const { return x * a + b; }
  at::Tensor a, b;
};
struct OddBeginImpl : OddEndImpl {
  using OddEndImpl::OddEndImpl;
  at::Tensor forward(const at::Tensor& x) { return moved(x).tanh(); }
};
struct OddCloseImpl : OddEndImpl {
  using OddEndImpl::OddEndImpl;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& wanted) {
    return at::mse_loss(moved(x), wanted);
  }
};
TORCH_MODULE(OddBegin);
TORCH_MODULE(OddClose);

// Each rank makes its own values, and all ranks use those of the first stage.
TEST(OddLayers, TiesAreSummedInTheSameOrderOnAllRanks) {
  ParallelOptions options = odd_options();
  options.initial = initial_kept;
  std::vector<std::vector<double>> losses;
  for (const char* axes : {"dp=1", "pp=2"}) {
    on_mesh(axes, [&](const comm::Mesh& mesh) {
      const double start = 0.5 + mesh.world().rank();
      const auto shared = [](const LayerContext& at) {
        return dynamic_cast<const OddEndImpl*>(at.find("begin").get());
      };
      std::vector<Layer> list = {
          {.name = "begin",
           .make = [&](const auto&) { return AnyModule(OddBegin(nullptr, false, start)); }},
          {.name = "again",
           .make =
               [&](const LayerContext& at) {
                 return AnyModule(OddBegin(shared(at), true, start));
               }},
          {.name = "close", .make = [&](const LayerContext& at) {
             return AnyModule(OddClose(shared(at), true, start));
           }}};
      for (std::size_t i : {std::size_t{1}, std::size_t{2}}) {
        list[i].tied = {{"a", {"begin", "a"}}, {"b", {"begin", "b"}}};
      }
      ParallelOptions how = options;
      if (mesh.axes().pp() > 1) how.split = {2, 1};
      ParallelModel model(list, mesh, how);
      std::vector<double> mine;
      for (int step = 0; step < 3; ++step) {
        mine.push_back(model.step(odd_batches(mesh, step)).loss);
      }
      if (mesh.world().rank() == 0) losses.push_back(mine);
      // Both ties share one group, whose traffic counts once.
      int tied = 0;
      comm::TrafficCounts want = mesh.pp().traffic();
      for (const auto& [what, group] : model.groups()) {
        if (std::string(what) != "tied") continue;
        ++tied;
        want = want + group.traffic();
      }
      EXPECT_EQ(tied, mesh.axes().pp() - 1) << axes;
      EXPECT_EQ(model.sent()[Axis::pp].sent_bytes, want.sent_bytes) << axes;
    });
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[0][i], losses[1][i], 1e-4 * losses[0][i]);
}

// predict() neither drops nor updates statistics, and restores the mode of every module.
TEST(OddLayers, PredictRunsInEvaluationMode) {
  for (const char* axes : {"dp=1", "pp=2"}) {
    on_mesh(axes, [&](const comm::Mesh& mesh) {
      OddNoise noise{nullptr};  // on the rank that has it
      const std::vector<Layer> list = {odd_mix(0),
                                       odd_layer("noise",
                                                 [&] {
                                                   noise = OddNoise();
                                                   return AnyModule(noise);
                                                 }),
                                       odd_mix(1),
                                       odd_layer("loss", [] { return AnyModule(OddLoss()); })};
      ParallelModel model(list, mesh, odd_options());
      model.step(odd_batches(mesh, 0));
      const at::Tensor before = noise ? noise->norm->running_mean.clone() : at::Tensor();
      const auto predict = [&] {
        return model.predict(odd_batches(mesh, 5)[0].input,
                             [](torch::nn::Module&, const at::Tensor& x) { return x; });
      };
      const at::Tensor first = predict(), second = predict();
      EXPECT_TRUE(at::equal(first, second)) << axes;
      if (noise) {
        EXPECT_FALSE(noise->trained) << axes;
        EXPECT_TRUE(at::equal(noise->norm->running_mean, before)) << axes;
        EXPECT_TRUE(noise->is_training() && noise->norm->is_training()) << axes;
        EXPECT_TRUE(noise->drop->is_training()) << axes;
        EXPECT_FALSE(noise->still->is_training()) << axes;
      }
      model.step(odd_batches(mesh, 1));
      if (noise) {
        EXPECT_TRUE(noise->trained) << axes;
        EXPECT_FALSE(at::equal(noise->norm->running_mean, before)) << axes;
      }
    });
  }
}

// A pipeline throws for a wrong number of micro-batches, and training can continue.
TEST(OddLayers, WrongNumberOfMicroBatchesChangesNothing) {
  const ParallelOptions options = odd_options();
  std::vector<double> losses[2];
  for (const bool wrong : {false, true}) {
    on_mesh("pp=2", [&](const comm::Mesh& mesh) {
      ParallelModel model(odd_list(), mesh, options);
      for (int step = 0; step < 2; ++step) {
        std::vector<MicroBatch> batches = odd_batches(mesh, step);
        if (wrong) {
          const std::vector<MicroBatch> fewer(batches.begin(), batches.end() - 1);
          const std::string message = error_of([&] { model.step(fewer); });
          EXPECT_TRUE(contains(message, "got 3 micro-batches")) << message;
        }
        const double loss = model.step(batches).loss;
        if (mesh.world().rank() == 0) losses[wrong ? 1 : 0].push_back(loss);
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(std::isfinite(losses[0].back()));
}

}  // namespace
}  // namespace tessera
