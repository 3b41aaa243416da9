// Layers that take and return several tensors, micro-batches whose shapes change, and evaluation
// through the pipeline, compared with one process.

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

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
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kListWidth = 5;
constexpr int kListMicroBatches = 4;

// {x, mask} to {h, memory, mask, positions}: values with a gradient, a bool and an integer.
struct ListBeginImpl : torch::nn::Module {
  ListBeginImpl()
      : state(register_module("state", torch::nn::Linear(kListWidth, kListWidth))),
        memory(register_module("memory", torch::nn::Linear(kListWidth, kListWidth))) {}
  Tensors forward(const Tensors& in) {
    const at::Tensor positions = at::arange(in[0].size(0), at::kLong);
    return {state(in[0]), memory(in[0]).tanh(), in[1], positions};
  }
  torch::nn::Linear state, memory;
};
TORCH_MODULE(ListBegin);

// Reads the memory where the mask allows; passes memory, mask and positions on.
struct ListCrossImpl : torch::nn::Module {
  ListCrossImpl() : linear(register_module("linear", torch::nn::Linear(kListWidth, kListWidth))) {}
  Tensors forward(const Tensors& in) {
    const at::Tensor read = at::where(in[2], in[1], at::zeros_like(in[1]));
    const at::Tensor shift = in[3].to(at::kFloat).unsqueeze(1) * 0.01;
    return {in[0] + linear(read + in[0]).tanh() + shift, in[1], in[2], in[3]};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(ListCross);

// Returns to one tensor, for a layer that takes one.
struct ListJoinImpl : torch::nn::Module {
  at::Tensor forward(const Tensors& in) { return in[0] + in[1]; }
};
TORCH_MODULE(ListJoin);

struct ListLossImpl : torch::nn::Module {
  at::Tensor forward(const Tensors& in, const at::Tensor& wanted) {
    return at::mse_loss(in[0] * 0.5 + in[1], wanted);
  }
};
TORCH_MODULE(ListLoss);
struct OneLossImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& wanted) {
    return at::mse_loss(x, wanted);
  }
};
TORCH_MODULE(OneLoss);

template <typename Module>
Layer list_layer(const std::string& name) {
  return {.name = name, .make = [](const auto&) { return AnyModule(Module()); }};
}

std::vector<Layer> list_layers(bool joined) {
  std::vector<Layer> list = {list_layer<ListBegin>("begin")};
  for (int i = 0; i < 4; ++i) list.push_back(list_layer<ListCross>(str("cross.", i)));
  if (joined) {
    list.push_back(list_layer<ListJoin>("join"));
    list.push_back(list_layer<torch::nn::Tanh>("curve"));
    list.push_back(list_layer<OneLoss>("loss"));
  } else {
    list.push_back(list_layer<ListLoss>("loss"));
  }
  return list;
}

ParallelOptions list_options() {
  ParallelOptions options;
  options.micro_batches = kListMicroBatches;
  options.seed = 9;
  options.initial = [](const ParamSpec& spec) {
    Initial initial = initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.4;
    return initial;
  };
  options.engine.clip_norm = 0.1;
  options.engine.optimizer = zero::AdamW{.lr = 0.01};
  return options;
}

MicroBatch list_batch(std::int64_t first, std::int64_t rows) {
  const at::Tensor i =
      at::arange(first * kListWidth, (first + rows) * kListWidth).view({rows, kListWidth});
  MicroBatch batch;
  batch.inputs = {(i * 0.7).sin().to(at::kFloat), i.remainder(3) != 0};
  batch.targets = (i * 0.3).cos().to(at::kFloat);
  return batch;
}

// A different number of rows in every step.
std::vector<MicroBatch> list_batches(const comm::Mesh& mesh, int step) {
  const std::int64_t rows = 2 + step;
  std::vector<MicroBatch> batches;
  const int each = kListMicroBatches / mesh.axes().dp();
  for (int k = 0; k < each; ++k) {
    batches.push_back(list_batch(100 * step + (mesh.dp().rank() * each + k) * rows, rows));
  }
  return batches;
}

struct ListRun {
  std::vector<double> numbers;  // loss and norm of each step
  Tensors evaluated;
};

ListRun list_train(const Axes& axes, ParallelOptions options, bool joined) {
  ListRun out;
  options.micro_batches = kListMicroBatches / axes.dp();
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    const comm::Mesh mesh(world, axes);
    ParallelModel model(list_layers(joined), mesh, options);
    ListRun mine;
    for (int step = 0; step < 3; ++step) {
      const zero::StepInfo info = model.step(list_batches(mesh, step));
      mine.numbers.push_back(info.loss);
      mine.numbers.push_back(info.grad_norm);
    }
    // Batches of different shapes, more than in one step.
    std::vector<MicroBatch> batches;
    for (std::int64_t k = 0; k < 7; ++k) batches.push_back(list_batch(50 * k, 1 + k % 3));
    mine.evaluated = model.evaluate(batches);
    if (joined) {
      const auto inputs = model.evaluate(
          batches, Finish([](torch::nn::Module&, const at::Tensor& x) { return x; }));
      mine.evaluated.insert(mine.evaluated.end(), inputs.begin(), inputs.end());
      // A type that groups do not support.
      const Finish signs = [](auto&, const at::Tensor& x) { return x > 0; };
      EXPECT_TRUE(at::equal(model.evaluate({batches[2]}, signs)[0], inputs[2] > 0));
    } else {
      const auto sums = model.evaluate(
          batches, FinishList([](torch::nn::Module&, const Tensors& x) { return x[0] + x[1]; }));
      mine.evaluated.insert(mine.evaluated.end(), sums.begin(), sums.end());
      if (mesh.axes().pp() == 1) {
        const std::string error = error_of(
            [&] { model.evaluate(batches, Finish([](auto&, const at::Tensor& x) { return x; })); });
        EXPECT_TRUE(contains(error, "takes 4 tensors, but finish takes one")) << error;
      }
    }
    if (world.rank() == 0) out = mine;
  });
  return out;
}

TEST(SeveralTensors, EveryMeshStageAndScheduleTrainsAndEvaluatesLikeOneProcess) {
  struct Way {
    const char *mesh, *schedule;
    int stage;
    nn::Recompute recompute;
  };
  const std::vector<Way> ways = {{"dp=2", "1f1b", 3, nn::Recompute::full},
                                 {"tp=2", "1f1b", 1, nn::Recompute::none},
                                 {"pp=2", "1f1b", 0, nn::Recompute::none},
                                 {"pp=2", "1f1b", 3, nn::Recompute::full},
                                 {"pp=3", "gpipe", 2, nn::Recompute::selective},
                                 {"dp=2,pp=2", "1f1b", 2, nn::Recompute::full},
                                 {"pp=2", "interleaved", 1, nn::Recompute::none},
                                 {"pp=2", "zb-h1", 0, nn::Recompute::none},
                                 {"pp=2", "zb-v", 0, nn::Recompute::full}};
  for (const bool joined : {false, true}) {
    const ListRun alone = list_train("dp=1", list_options(), joined);
    ASSERT_EQ(alone.evaluated.size(), 14u);
    for (const Way& way : ways) {
      ParallelOptions options = list_options();
      options.schedule = way.schedule;
      options.engine.stage = way.stage;
      options.recompute = way.recompute;
      const std::string where = str(way.mesh, ", ", way.schedule, joined ? ", joined" : "");
      const ListRun got = list_train(way.mesh, options, joined);
      ASSERT_EQ(got.numbers.size(), alone.numbers.size()) << where;
      for (std::size_t i = 0; i < got.numbers.size(); ++i) {
        EXPECT_NEAR(got.numbers[i], alone.numbers[i], 1e-4 * alone.numbers[i]) << where << " " << i;
      }
      ASSERT_EQ(got.evaluated.size(), alone.evaluated.size()) << where;
      for (std::size_t i = 0; i < got.evaluated.size(); ++i) {
        ASSERT_EQ(got.evaluated[i].sizes(), alone.evaluated[i].sizes()) << where << " " << i;
        EXPECT_TRUE(at::allclose(got.evaluated[i], alone.evaluated[i], 1e-3, 1e-4))
            << where << " " << i;
      }
    }
  }
}

TEST(SeveralTensors, PipelineRejectsDifferentShapesInOneStep) {
  std::vector<std::string> errors(2);
  over(2, [&](const comm::Group& world) {
    const comm::Mesh mesh(world, "pp=2");
    ParallelModel model(list_layers(true), mesh, list_options());
    std::vector<MicroBatch> batches = list_batches(mesh, 0);
    batches[2] = list_batch(7, 3);
    errors[static_cast<std::size_t>(world.rank())] = error_of([&] { model.step(batches); });
  });
  for (const char* words : {"activation of micro-batch 2", "[3, 5] Float", "[2, 5] Float",
                            "an earlier micro-batch of this step", "pad them"}) {
    EXPECT_TRUE(contains(errors[0], words)) << errors[0];
  }
}

}  // namespace
}  // namespace tessera
