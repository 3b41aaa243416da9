// ParallelModel on meshes with context parallelism: layers of a user, and mistakes.

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/ops.h"
#include "tessera/parallel/parallelize.h"
#include "tests/ranks.h"
#include "tests/text.h"

namespace tessera {
namespace {

using torch::nn::AnyModule;

constexpr std::int64_t kWide = 8, kIds = 11, kHeads = 4;

struct ContextEmbedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& ids) { return table(ids); }
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(kIds, kWide));
};
TORCH_MODULE(ContextEmbed);

// Attention and a linear. `aware`: along cp; otherwise as a layer that does not know of it.
struct ContextMixImpl : torch::nn::Module {
  ContextMixImpl(context_parallel::Axis axis, bool knows) : cp(std::move(axis)), aware(knows) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor all = qkv(x);
    return x + (aware ? context_parallel::attention(cp, all, kHeads, kHeads, {}, "mix")
                      : nn::attention(all, kHeads));
  }
  context_parallel::Axis cp;
  bool aware;
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(kWide, 3 * kWide));
};
TORCH_MODULE(ContextMix);

// Sum of the cross entropies of targets that are not -1.
struct ContextLossImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& targets) {
    return at::cross_entropy_loss(head(x).flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum,
                                  -1);
  }
  torch::nn::Linear head = register_module("head", torch::nn::Linear(kWide, kIds));
};
TORCH_MODULE(ContextLoss);

std::vector<Layer> context_layers(bool aware = true) {
  return {{.name = "embed", .make = [](const auto&) { return AnyModule(ContextEmbed()); }},
          {.name = "mix",
           .make =
               [=](const LayerContext& at) {
                 context_parallel::Axis cp = at.cp;
                 if (cp.kind == ContextKind::automatic) cp.kind = ContextKind::ring;
                 return AnyModule(ContextMix(cp, aware));
               }},
          {.name = "loss", .make = [](const auto&) { return AnyModule(ContextLoss()); }}};
}

// Called before ranks start, because they are threads that share torch's generator.
MicroBatch context_batch(std::int64_t tokens) {
  torch::manual_seed(4);
  MicroBatch batch;
  batch.input = at::randint(kIds, {2, tokens}, at::kLong);
  batch.targets = at::randint(kIds, {2, tokens}, at::kLong);
  batch.targets.narrow(1, 0, tokens / 3).fill_(-1);  // ranks have different numbers of labels
  return batch;
}

// Losses of three steps on rank 0 of a mesh.
std::vector<double> context_losses(const Axes& axes, ContextKind kind, std::int64_t tokens) {
  std::vector<double> losses;
  const MicroBatch batch = context_batch(tokens);
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    ParallelOptions options;
    options.seed = 3;
    options.context = kind;
    options.engine.stage = 3;
    options.engine.optimizer = zero::AdamW{.lr = 0.01};
    ParallelModel model(context_layers(), comm::Mesh(world, axes), options);
    const auto labels = static_cast<double>(batch.targets.ge(0).sum().item<std::int64_t>());
    for (int step = 0; step < 3; ++step) {
      const double loss = model.start_step({batch}, {.tokens = labels}).get().loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

TEST(ParallelContext, LayersOfAUserTrainAsInOneProcess) {
  for (const std::int64_t tokens : {16, 21}) {
    const std::vector<double> alone = context_losses("dp=1", ContextKind::ring, tokens);
    for (const char* mesh : {"cp=2", "cp=4"}) {
      for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
        const std::vector<double> losses = context_losses(mesh, kind, tokens);
        for (std::size_t i = 0; i < alone.size(); ++i) {
          EXPECT_NEAR(losses[i], alone[i], 2e-6 * alone[i]) << mesh << " " << name(kind);
        }
      }
    }
  }
}

// Message of a step on two context-parallel ranks.
std::string context_refusal(const std::vector<Layer>& layers, const MicroBatch& batch) {
  std::string message;
  over(2, [&](const comm::Group& world) {
    const std::string error = error_of([&] {
      ParallelModel model(layers, comm::Mesh(world, "cp=2"));
      model.step({batch});
    });
    if (world.rank() == 0) message = error;
  });
  return message;
}

TEST(ParallelContext, RefusesLayersThatTreatAPartAsWholeRows) {
  EXPECT_TRUE(contains(context_refusal(context_layers(/*aware=*/false), context_batch(16)),
                       "Use context_parallel::attention()"));
  std::vector<Layer> layers = context_layers();
  layers[1].make = [](const auto&) { return AnyModule(torch::nn::MultiheadAttention(kWide, 2)); };
  EXPECT_TRUE(
      contains(context_refusal(layers, context_batch(16)), "which combines tokens of a row"));
}

TEST(ParallelContext, RefusesTensorsThatCannotBeCut) {
  MicroBatch batch = context_batch(16);
  batch.targets = batch.targets.narrow(1, 0, 15);
  EXPECT_TRUE(contains(context_refusal(context_layers(), batch), "with equal tokens"));
  batch = context_batch(16);
  batch.input = batch.input.flatten();
  EXPECT_TRUE(contains(context_refusal(context_layers(), batch), "[batch, tokens, …]"));
  batch = context_batch(15);
  batch.targets = batch.targets.to(at::kFloat);
  EXPECT_TRUE(contains(context_refusal(context_layers(), batch), "must be a multiple of 4"));
}

TEST(ParallelContext, NamesInputsThatDifferBetweenRanks) {
  std::string message;
  const MicroBatch given = context_batch(16);
  over(2, [&](const comm::Group& world) {
    ParallelModel model(context_layers(), comm::Mesh(world, "cp=2"));
    MicroBatch batch = given;
    batch.input = (batch.input + world.rank()).remainder(kIds);
    const std::string error = error_of([&] { model.step({batch}); });
    if (world.rank() == 0) message = error;
  });
  EXPECT_TRUE(contains(message, "Tensor- and context-parallel ranks must get the same"));
}

}  // namespace
}  // namespace tessera
