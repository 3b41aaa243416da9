// Models of a user, given as layers, on any mesh, compared with the same models in one process.

#include "tessera/parallel/parallelize.h"

#include <ATen/ops/gelu.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <map>

#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/combinations.h"
#include "tests/ranks.h"
#include "tests/text.h"

namespace tessera {
namespace {

using torch::nn::AnyModule;

constexpr std::int64_t kWidth = 8, kWords = 10, kRows = 16;
constexpr int kMicroBatches = 4;

struct WordsImpl : torch::nn::Module {
  WordsImpl() { table = register_module("table", torch::nn::Embedding(kWords, kWidth)); }
  at::Tensor forward(const at::Tensor& ids) { return table(ids); }
  torch::nn::Embedding table{nullptr};
};
TORCH_MODULE(Words);

struct MixImpl : torch::nn::Module {
  explicit MixImpl(const LayerContext& at) {
    up = register_module(
        "up", tensor_parallel::ColumnParallelLinear(at.tp, at.linear("up", kWidth, 2 * kWidth)));
    down = register_module(
        "down", tensor_parallel::RowParallelLinear(at.tp, at.linear("down", 2 * kWidth, kWidth)));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(x))); }
  tensor_parallel::ColumnParallelLinear up{nullptr};
  tensor_parallel::RowParallelLinear down{nullptr};
};
TORCH_MODULE(Mix);

// Loss of a head that has its own matrix, or uses the word table.
struct GuessImpl : torch::nn::Module {
  explicit GuessImpl(const at::Tensor& shared) {
    const at::Tensor own = shared.defined() ? shared : torch::zeros({kWords, kWidth});
    weight = register_parameter("weight", own);
  }
  at::Tensor logits(const at::Tensor& x) { return at::matmul(x, weight.t()); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& words) {
    return torch::nn::functional::cross_entropy(logits(x), words);
  }
  at::Tensor weight;
};
TORCH_MODULE(Guess);

std::vector<Layer> layers(bool tied, int mixes = 6) {
  std::vector<Layer> list;
  list.push_back({.name = "words", .make = [](const auto&) { return AnyModule(Words()); }});
  for (int i = 0; i < mixes; ++i) {
    list.push_back({.name = str("mixes.", i),
                    .make = [](const LayerContext& at) { return AnyModule(Mix(at)); }});
  }
  Layer guess{.name = "guess", .make = [tied](const LayerContext& at) {
                const auto words = std::dynamic_pointer_cast<WordsImpl>(at.find("words"));
                return AnyModule(Guess(tied && words ? words->table->weight : at::Tensor()));
              }};
  if (tied) guess.tied["weight"] = {"words", "table.weight"};
  list.push_back(std::move(guess));
  return list;
}

Initial spread(const ParamSpec& spec) {
  Initial initial = initial_default(spec);
  if (initial.deviation > 0) initial.deviation = 0.3;
  return initial;
}

ParallelOptions options_of(int stage = 0) {
  ParallelOptions options;
  options.micro_batches = kMicroBatches;
  options.check_replicas = 1;
  options.seed = 7;
  options.initial = spread;
  options.engine.stage = stage;
  options.engine.clip_norm = 0.5;  // so that the norm of the gradient matters, too
  options.engine.optimizer = zero::AdamW{.lr = 0.01};
  return options;
}

std::vector<MicroBatch> batches_of(const comm::Mesh& mesh, int step) {
  std::vector<MicroBatch> batches;
  const std::int64_t rows = kRows / mesh.axes().dp() / kMicroBatches;
  for (int k = 0; k < kMicroBatches; ++k) {
    const std::int64_t first = step * kRows + (mesh.dp().rank() * kMicroBatches + k) * rows;
    const at::Tensor i = at::arange(first, first + rows, at::kLong);
    batches.push_back(
        {(i * 7 + i.div(3, "floor")).remainder(kWords), (i * 3 + 1).remainder(kWords)});
  }
  return batches;
}

struct Trained {
  std::vector<double> losses, norms;
  at::Tensor logits;
};

Trained train(const std::vector<Layer>& list, const Axes& axes, const ParallelOptions& options,
              const zero::StepOptions& of_steps = {}) {
  Trained out;
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    const comm::Mesh mesh(world, axes);
    ParallelModel first(list, mesh, options);
    ParallelModel model = std::move(first);
    Trained mine;
    for (int step = 0; step < 4; ++step) {
      const zero::StepInfo info = model.step(batches_of(mesh, step), of_steps);
      mine.losses.push_back(info.loss);
      mine.norms.push_back(info.grad_norm);
    }
    mine.logits = model.predict(at::arange(kWords, at::kLong),
                                [](torch::nn::Module& last, const at::Tensor& x) {
                                  return dynamic_cast<GuessImpl&>(last).logits(x);
                                });
    if (mesh.world().rank() == 0) out = mine;
    // All ranks get the same result.
    const at::Tensor told = at::tensor(mine.losses, at::kDouble).clone();
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "losses";
    mesh.world().broadcast(told, 0, call).wait();
    EXPECT_TRUE(at::equal(told, at::tensor(mine.losses, at::kDouble))) << axes.text();
  });
  return out;
}

void expect_near(const Trained& got, const Trained& want, const std::string& where) {
  ASSERT_EQ(got.losses.size(), want.losses.size()) << where;
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 2e-5 * want.losses[i]) << where << ", step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-4 * want.norms[i]) << where << ", step " << i;
  }
  EXPECT_TRUE(at::allclose(got.logits, want.logits, 1e-3, 1e-4)) << where;
}

TEST(Parallelize, EveryMeshStageAndScheduleTrainsLikeOneProcess) {
  std::map<bool, Trained> alone;
  for (const bool tied : {false, true}) {
    alone[tied] = train(layers(tied), "dp=1", options_of());
    ASSERT_LT(alone[tied].losses.back(), alone[tied].losses.front());
  }
  const auto check = [&](bool tied, const Axes& axes, const ParallelOptions& options,
                         const std::vector<Layer>& list) {
    expect_near(train(list, axes, options), alone[tied],
                str(axes.text(), tied ? " tied" : "", ", stage ", options.engine.stage, ", ",
                    options.schedule));
  };
  const auto meshes = [](bool, int dp, int tp, int pp, auto&&...) {
    return dp * tp * pp > 1 && dp * tp * pp <= 8;
  };
  for (const auto& [tied, dp, tp, pp, stage, recompute] :
       combinations_where(meshes, std::vector{false, true}, std::vector{1, 2}, std::vector{1, 2},
                          std::vector{1, 2, 4}, std::vector{0, 1, 2, 3},
                          std::vector{nn::Recompute::none, nn::Recompute::full})) {
    ParallelOptions options = options_of(stage);
    options.recompute = recompute;
    check(tied, {{Axis::dp_shard, dp}, {Axis::tp, tp}, {Axis::pp, pp}}, options, layers(tied));
  }
  for (const bool tied : {false, true}) {
    for (const char* schedule : {"gpipe", "interleaved", "zb-h1", "zb-v"}) {
      if (tied && std::string(schedule) == "zb-v") continue;  // rejected, see NamesMistakes
      ParallelOptions options = options_of(2);
      options.schedule = schedule;
      if (std::string(schedule) == "interleaved") options.model_chunks = 2;
      check(tied, "pp=2", options, layers(tied));
    }
    std::vector<Layer> heavy = layers(tied);
    heavy[1].cost = 5;  // a separate stage, with the words
    check(tied, "pp=2", options_of(1), heavy);
    ParallelOptions uneven = options_of(3);
    uneven.split = {1, 7};
    check(tied, "pp=2", uneven, layers(tied));
  }
}

// Every model chunk of a pipeline passes its buckets to the hook, and one of them is the last.
TEST(Parallelize, AllReducingHookHasTheBitsOfNoHook) {
  for (const char* mesh : {"dp=2,tp=2", "dp=2,pp=2", "dp=3"}) {
    for (const int model_chunks : {1, 2}) {
      if (model_chunks > 1 && std::string(mesh) != "dp=2,pp=2") continue;
      ParallelOptions options = options_of();
      options.engine.bucket_bytes = 300;
      if (model_chunks > 1) options.schedule = "interleaved";
      options.model_chunks = model_chunks;
      const Trained want = train(layers(true), mesh, options);
      std::atomic<int> steps = 0;
      options.engine.reduce_hook = [&](const zero::GradBucket& bucket, const comm::Group& data) {
        steps += bucket.last ? 1 : 0;
        return data.all_reduce(bucket.grads, {.label = bucket.label});
      };
      const Trained got = train(layers(true), mesh, options);
      EXPECT_EQ(got.losses, want.losses) << mesh;
      EXPECT_EQ(got.norms, want.norms) << mesh;
      EXPECT_TRUE(at::equal(got.logits, want.logits)) << mesh;
      EXPECT_EQ(steps, 4 * Axes(mesh).world()) << mesh;
    }
  }
}

// Settings passed with each step act like those that the engine was made with, on any mesh.
TEST(Parallelize, StepSettingsReplaceThoseOfTheEngine) {
  const auto scale = [](const std::string& param) {
    return param.find("mixes.2") == 0 ? 3.0 : param.find("words") == 0 ? 0.5 : 1.0;
  };
  ParallelOptions made = options_of();
  made.engine.clip_norm = 0.2;
  made.engine.optimizer = zero::AdamW{.lr = 0.03, .weight_decay = 0.4};
  made.engine.policy = [&](const std::string& name, const at::Tensor& param) {
    zero::ParamPolicy policy = zero::default_policy(name, param);
    policy.lr_scale = scale(name);
    return policy;
  };
  const Trained want = train(layers(true), "dp=1", made);
  const zero::StepOptions given{
      .lr = 0.03, .clip_norm = 0.2, .weight_decay = 0.4, .lr_scale = scale};
  int stage = 0;
  for (const char* mesh : {"dp=1", "dp=2,tp=2", "tp=2,pp=2", "dp=2,pp=2"}) {
    expect_near(train(layers(true), mesh, options_of(stage++), given), want, mesh);
  }
}

// The same steps without and with a graph, whose settings are in device memory.
TEST(Parallelize, GraphedStepsUseTheirSettings) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU";
  std::vector<std::vector<double>> losses;
  for (const Graphs graphs : {Graphs::never, Graphs::automatic}) {
    ParallelOptions options = options_of();
    options.device = c10::Device(c10::kCUDA, 0);
    options.graphs = graphs;
    const comm::Mesh mesh(comm::Group(), "dp=1");
    ParallelModel model(layers(false), mesh, options);
    std::vector<double> now;
    for (int step = 0; step < 12; ++step) {
      zero::StepOptions given{.lr = 0.03 / (step + 1), .clip_norm = step % 2 == 0 ? 0.1 : 0.0};
      if (step % 4 == 1) given.weight_decay = 2;
      if (step % 4 >= 2) given.lr_scale = [](const std::string& p) { return p.size() % 3 + 0.5; };
      now.push_back(model.step(batches_of(mesh, step), given).loss);
    }
    if (graphs == Graphs::automatic && !model.graphed()) {
      GTEST_SKIP() << "no graph: " << model.graph_problem();
    }
    losses.push_back(now);
  }
  for (std::size_t i = 0; i < losses[0].size(); ++i) {
    EXPECT_NEAR(losses[1][i], losses[0][i], 1e-4 * losses[0][i]) << "step " << i;
  }
}

// Values of constructors are those of the first rank that has the parameter, for all copies.
TEST(Parallelize, KeptValuesAreThoseOfTheFirstRank) {
  ParallelOptions options = options_of(1);
  options.initial = [](const ParamSpec& spec) {
    return spec.cut_along(Axis::tp) ? spread(spec) : initial_kept(spec);
  };
  for (const char* text : {"dp=2", "tp=2", "pp=2", "dp=2,tp=2,pp=2"}) {
    const Axes axes(text);
    const auto ranks = static_cast<std::size_t>(axes.world());
    std::vector<std::map<std::string, at::Tensor>> made(ranks), trained(ranks);  // [rank]
    comm::run_threads(static_cast<int>(ranks), [&](std::shared_ptr<comm::Backend> backend) {
      const comm::Mesh mesh(comm::Group(std::move(backend)), axes);
      const auto rank = static_cast<std::size_t>(mesh.world().rank());
      std::vector<Layer> list = layers(true);
      list.front().make = [rank](const auto&) {
        Words words;
        const at::NoGradGuard no_grad;
        words->table->weight.fill_(static_cast<double>(rank) + 1);
        return AnyModule(words);
      };
      ParallelModel model(list, mesh, options);
      for (const auto& [name, value] : model.engine().full_parameters()) {
        made[rank][name] = value.clone();
      }
      model.step(batches_of(mesh, 0));
      for (const auto& [name, value] : model.engine().full_parameters()) {
        trained[rank][name] = value.clone();
      }
    });
    int tables = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (!made[r].contains("words.table.weight")) continue;
      ++tables;
      EXPECT_TRUE(at::equal(made[r]["words.table.weight"], torch::ones({kWords, kWidth}))) << text;
      EXPECT_TRUE(at::equal(trained[r]["words.table.weight"], trained[0]["words.table.weight"]))
          << text << ", rank " << r;
    }
    EXPECT_EQ(tables, axes.world()) << text;  // the first and the last stage have it
  }
}

TEST(Parallelize, NamesMistakes) {
  const auto problem = [](const std::vector<Layer>& list, const Axes& axes,
                          const ParallelOptions& options) {
    return error_of([&] { train(list, axes, options); });
  };
  EXPECT_TRUE(contains(problem({}, "dp=1", options_of()), "has no layers"));
  EXPECT_TRUE(
      contains(problem(layers(false, 1), "pp=4", options_of()), "3 layers cannot be cut into 4"));
  ParallelOptions options = options_of();
  options.split = {4, 5};
  EXPECT_TRUE(contains(problem(layers(false), "pp=2", options), "2 stages with 9"));
  options = options_of();
  options.schedule = "zb-v";
  EXPECT_TRUE(contains(problem(layers(true), "pp=2", options), "trained twice"));
  options.engine.stage = 3;
  EXPECT_TRUE(contains(problem(layers(false), "pp=2", options), "defers weight gradients"));
  auto list = layers(false);
  list[2].name = list[1].name;
  EXPECT_TRUE(contains(problem(list, "dp=1", options_of()), "Two layers have the name"));
  list = layers(false);
  list.back().tied["weight"] = {"absent", "weight"};
  EXPECT_TRUE(contains(problem(list, "dp=1", options_of()), "absent"));
  list = layers(false);
  list[1].make = [](const auto&) { return AnyModule(); };
  EXPECT_TRUE(contains(problem(list, "dp=1", options_of()), "returned an empty module"));
}

}  // namespace
}  // namespace tessera
