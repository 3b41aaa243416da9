// The library's mixture of experts inside the layers of a user, on meshes with ep.

#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/save.h"
#include "tests/combinations.h"
#include "tests/ranks.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera {
namespace {

using torch::nn::AnyModule;

constexpr std::int64_t kExpertWidth = 8, kExpertRows = 8, kExpertTokens = 3;
constexpr std::int64_t kUnused = 3;  // number of an expert that no token is sent to

struct ExpertBlockImpl : torch::nn::Module {
  explicit ExpertBlockImpl(const LayerContext& at) {
    experts::LayerOptions options;
    options.hidden = kExpertWidth;
    options.experts = {
        .count = 5, .per_token = 2, .width = 12, .selection_bias = true, .balance_loss = 0.01};
    options.label = at.name + ".mix";
    mix = register_module("mix", experts::MixtureOfExperts(at.experts(), options));
    mix->named_buffers()["selection_bias"][kUnused] = -1e9;
  }
  at::Tensor forward(const at::Tensor& x) { return x + mix(x); }
  experts::MixtureOfExperts mix{nullptr};
};
TORCH_MODULE(ExpertBlock);

struct ExpertLossImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return at::mse_loss(linear(x), y);
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kExpertWidth, 2));
};
TORCH_MODULE(ExpertLoss);

ParallelModel expert_model(const comm::Group& world, const Axes& axes, int stage) {
  std::vector<Layer> layers = {{.name = "lift", .make = [](const auto&) {
                                  return AnyModule(torch::nn::Linear(4, kExpertWidth));
                                }}};
  for (int i = 0; i < 2; ++i) {
    layers.push_back({.name = str("blocks.", i),
                      .make = [](const LayerContext& at) { return AnyModule(ExpertBlock(at)); }});
  }
  layers.push_back({.name = "loss", .make = [](const auto&) { return AnyModule(ExpertLoss()); }});
  ParallelOptions options;
  options.seed = 7;
  options.micro_batches = 2;
  options.engine.stage = stage;
  options.engine.optimizer = zero::AdamW{.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1};
  options.initial = [](const ParamSpec& spec) {
    Initial initial = initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.3;
    return initial;
  };
  return ParallelModel(std::move(layers), comm::Mesh(world, axes), options);
}

void expert_steps(ParallelModel& model, int from, int to) {
  const comm::Mesh& mesh = model.mesh();
  const std::int64_t rows = kExpertRows / mesh.axes().dp() / 2;
  for (int step = from; step < to; ++step) {
    std::vector<MicroBatch> batches;
    for (int k = 0; k < 2; ++k) {
      const std::int64_t first = (mesh.dp().rank() * 2 + k) * rows;
      const at::Tensor all =
          at::arange(kExpertRows * kExpertTokens * 4, at::kFloat).add(31 * step).mul(0.7).sin();
      const at::Tensor x = all.view({kExpertRows, kExpertTokens, 4}).narrow(0, first, rows);
      batches.push_back({x, x.narrow(2, 0, 2) * 2});
    }
    model.step(batches);
  }
}

// Parameters of the whole model by name, from all ranks. Every rank that has one must agree.
std::map<std::string, at::Tensor> expert_params(const Axes& axes, int stage, int steps,
                                                const std::string& load_from = "",
                                                const std::string& save_to = "", int from = 0) {
  std::map<std::string, at::Tensor> all;
  std::mutex mutex;
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    ParallelModel model = expert_model(world, axes, stage);
    if (!load_from.empty()) load(model, load_from);
    expert_steps(model, from, steps);
    if (!save_to.empty()) save(model, save_to);
    if (axes.tp() > 1) return;  // a rank has parts
    const auto own = model.engine().full_parameters();
    const std::lock_guard lock(mutex);
    for (const auto& [name, values] : own) {
      const auto [at, fresh] = all.emplace(name, values.clone());
      EXPECT_TRUE(fresh || at->second.equal(values)) << name << " " << axes.text();
    }
  });
  return all;
}

void expect_near(const std::map<std::string, at::Tensor>& got,
                 const std::map<std::string, at::Tensor>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, values] : want) {
    ASSERT_TRUE(got.contains(name)) << name << " " << what;
    EXPECT_LT((got.at(name) - values).abs().max().item<double>(), 2e-6) << name << " " << what;
  }
}

TEST(ParallelExperts, LayersOfAUserTrainAsInOneProcess) {
  const auto alone = expert_params("dp=1", 0, 3);
  const auto allowed = [](int dp, int replicas, int pp, int ep, int stage) {
    return dp % (replicas * ep) == 0 && (replicas == 1 || stage > 0) && dp * pp > 1;
  };
  for (const auto& [dp, replicas, pp, ep, stage] :
       combinations_where(allowed, std::vector{1, 2, 4}, std::vector{1, 2}, std::vector{1, 2},
                          std::vector{1, 2, 4}, std::vector{0, 1, 2, 3})) {
    std::string mesh = str("dp=", dp, ",ep=", ep, ",pp=", pp);
    if (replicas > 1) mesh += str(",dp_replicate=", replicas);
    expect_near(expert_params(mesh.c_str(), stage, 3), alone, str(mesh, ", stage ", stage));
  }
}

TEST(ParallelExperts, AnExpertWithoutTokensIsNotUpdated) {
  const auto start = expert_params("dp=1", 0, 0);
  for (const char* mesh : {"dp=1", "dp=4,ep=2"}) {
    for (const int stage : {0, 3}) {
      const auto end = expert_params(mesh, stage, 3);
      int unused = 0;
      for (const auto& [name, values] : end) {
        const bool same = values.equal(start.at(name));
        const bool no_tokens = contains(name, str(".mix.", kUnused, "."));
        unused += no_tokens ? 1 : 0;
        EXPECT_EQ(same, no_tokens) << name << " " << mesh << ", stage " << stage;
      }
      EXPECT_EQ(unused, 4);  // two matrices in each of two layers
    }
  }
}

TEST(ParallelExperts, CheckpointsFitAnyMesh) {
  const auto want = expert_params("dp=1", 0, 4);
  const std::vector<std::pair<const char*, int>> meshes = {
      {"dp=1", 0}, {"dp=2,ep=2", 3}, {"dp=4,ep=4", 2}, {"dp=4,ep=2", 1}, {"dp=2,tp=2,ep=2", 3}};
  for (const auto& [from, stage_from] : meshes) {
    const TemporaryFolder folder;
    expert_params(from, stage_from, 2, "", folder.path);
    for (const auto& [to, stage_to] : meshes) {
      if (contains(to, "tp=2")) continue;
      expect_near(expert_params(to, stage_to, 4, folder.path, "", 2), want, str(from, " to ", to));
    }
  }
}

TEST(ParallelExperts, LoadsCountEveryToken) {
  for (const char* mesh : {"dp=1", "dp=4,ep=2", "dp=2,ep=2,pp=2", "tp=2"}) {
    over(static_cast<int>(Axes(mesh).world()), [&](const comm::Group& world) {
      ParallelModel model = expert_model(world, mesh, 1);
      expert_steps(model, 0, 2);
      const std::vector<ExpertLoad> loads = model.take_expert_loads();
      ASSERT_EQ(loads.size(), 2U) << mesh;
      for (std::size_t i = 0; i < loads.size(); ++i) {
        EXPECT_EQ(loads[i].layer, str("blocks.", i, ".mix")) << mesh;
        std::int64_t sum = 0;
        for (const std::int64_t tokens : loads[i].tokens) sum += tokens;
        EXPECT_EQ(sum, 2 * 2 * kExpertRows * kExpertTokens) << mesh;
        EXPECT_EQ(loads[i].tokens.at(kUnused), 0) << mesh;
        EXPECT_GT(loads[i].entropy, 0) << mesh;
      }
      for (const ExpertLoad& load : model.take_expert_loads()) {
        for (const std::int64_t tokens : load.tokens) EXPECT_EQ(tokens, 0) << mesh;
      }
    });
  }
}

}  // namespace
}  // namespace tessera
