// Parameters that several layers share: on one rank, on several ranks, and with every mistake that
// a list of layers can have.

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
#include "tests/ranks.h"
#include "tests/text.h"

namespace tessera {
namespace {

using torch::nn::AnyModule;

constexpr std::int64_t kTieWidth = 4, kTieRows = 12;
constexpr int kTieMicroBatches = 3;

// tanh(x · w + v), with tensors that may belong to another layer.
struct TieMixImpl : torch::nn::Module {
  TieMixImpl(const at::Tensor& other_w, const at::Tensor& other_v, std::int64_t width = kTieWidth)
      : w(register_parameter("w", other_w.defined() ? other_w : torch::zeros({width, width}))),
        v(register_parameter("v", other_v.defined() ? other_v : torch::zeros({width}))) {}
  at::Tensor forward(const at::Tensor& x) { return (at::matmul(x, w) + v).tanh() + x; }
  at::Tensor w, v;
};
TORCH_MODULE(TieMix);

struct TieLossImpl : torch::nn::Module {
  explicit TieLossImpl(const at::Tensor& other)
      : w(register_parameter("w", other.defined() ? other : torch::zeros({kTieWidth, kTieWidth}))) {
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& wanted) {
    return at::mse_loss(at::matmul(x, w), wanted);
  }
  at::Tensor w;
};
TORCH_MODULE(TieLoss);

Layer tie_own(const std::string& name) {
  return {.name = name,
          .make = [](const auto&) { return AnyModule(TieMix(at::Tensor(), at::Tensor())); }};
}
Layer tie_to(const std::string& name, const std::string& owner) {
  return {
      .name = name,
      .make = [](const LayerContext& at) { return AnyModule(TieMix(at.tied("w"), at::Tensor())); },
      .tied = {{"w", {owner, "w"}}}};
}

// Five layers with the matrix of the second; the last is tied through the one before it.
std::vector<Layer> tie_list() {
  std::vector<Layer> list = {tie_own("first"), tie_own("owner"), tie_to("b", "owner"),
                             tie_to("c", "owner"), tie_to("d", "c")};
  list.push_back({.name = "loss",
                  .make = [](const LayerContext& at) { return AnyModule(TieLoss(at.tied("w"))); },
                  .tied = {{"w", {"d", "w"}}}});
  return list;
}

ParallelOptions tie_options() {
  ParallelOptions options;
  options.micro_batches = kTieMicroBatches;
  options.seed = 5;
  options.initial = [](const ParamSpec& spec) {
    Initial initial = initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.4;
    return initial;
  };
  options.engine.clip_norm = 0.2;
  options.engine.optimizer = zero::AdamW{.lr = 0.02};
  return options;
}

std::vector<MicroBatch> tie_batches(int step) {
  std::vector<MicroBatch> batches;
  const std::int64_t rows = kTieRows / kTieMicroBatches;
  for (int k = 0; k < kTieMicroBatches; ++k) {
    const std::int64_t first = (step * kTieRows + k * rows) * kTieWidth;
    const at::Tensor x = at::arange(first, first + rows * kTieWidth).view({rows, kTieWidth});
    batches.push_back({(x * 0.7).sin().to(at::kFloat), (x * 0.3).cos().to(at::kFloat)});
  }
  return batches;
}

struct TieRun {
  std::vector<double> numbers;
  std::vector<at::Tensor> matrices;  // by rank that has it
};

TieRun tie_train(const std::vector<Layer>& list, const Axes& axes, const ParallelOptions& options) {
  TieRun out;
  std::mutex mutex;
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    const comm::Mesh mesh(world, axes);
    ParallelModel model(list, mesh, options);
    std::vector<double> mine;
    for (int step = 0; step < 4; ++step) {
      const zero::StepInfo info = model.step(tie_batches(step));
      mine.push_back(info.loss);
      mine.push_back(info.grad_norm);
    }
    const auto params = model.engine().full_parameters();
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) out.numbers = mine;
    int found = 0;
    for (const auto& [name, value] : params) {
      if (name != "owner.w") continue;
      ++found;
      out.matrices.push_back(value.clone());
    }
    EXPECT_LE(found, 1) << axes.text();
  });
  return out;
}

TEST(Ties, AnyNumberOfLayersShareAParameterOnAnyPipeline) {
  const TieRun alone = tie_train(tie_list(), "dp=1", tie_options());
  ASSERT_EQ(alone.matrices.size(), 1u);
  ASSERT_LT(alone.numbers[6], alone.numbers[0]);
  struct Way {
    const char* mesh;
    std::vector<int> split;
    std::size_t copies;
  };
  const std::vector<Way> ways = {{"pp=2", {2, 4}, 2},    {"pp=2", {1, 5}, 1},
                                 {"pp=2", {5, 1}, 2},    {"pp=3", {2, 2, 2}, 3},
                                 {"pp=3", {1, 1, 4}, 2}, {"pp=3", {3, 2, 1}, 3}};
  for (const int stage : {0, 2, 3}) {
    for (const Way& way : ways) {
      ParallelOptions options = tie_options();
      options.split = way.split;
      options.engine.stage = stage;
      const std::string where = str(way.mesh, ", split ", way.split[0], ", stage ", stage);
      const TieRun got = tie_train(tie_list(), way.mesh, options);
      ASSERT_EQ(got.numbers.size(), alone.numbers.size()) << where;
      for (std::size_t i = 0; i < got.numbers.size(); ++i) {
        EXPECT_NEAR(got.numbers[i], alone.numbers[i], 1e-4 * alone.numbers[i]) << where << " " << i;
      }
      EXPECT_EQ(got.matrices.size(), way.copies) << where;
      for (const at::Tensor& matrix : got.matrices) {
        EXPECT_TRUE(at::equal(matrix, got.matrices[0])) << where;
        EXPECT_TRUE(at::allclose(matrix, alone.matrices[0], 1e-3, 1e-4)) << where;
      }
    }
  }
}

// Returns the text of the UsageError that each rank of the mesh throws; "" if a rank does not
// throw.
std::vector<std::string> tie_errors(const std::vector<Layer>& list, const Axes& axes,
                                    const ParallelOptions& options = tie_options()) {
  std::vector<std::string> errors(static_cast<std::size_t>(axes.world()));
  over(static_cast<int>(axes.world()), [&](const comm::Group& world) {
    try {
      ParallelModel model(list, comm::Mesh(world, axes), options);
    } catch (const UsageError& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return errors;
}

void expect_on_all(const std::vector<Layer>& list, const std::vector<std::string>& meshes,
                   const std::vector<std::string>& words) {
  for (const std::string& mesh : meshes) {
    const auto errors = tie_errors(list, Axes(std::string_view(mesh)));
    for (std::size_t r = 0; r < errors.size(); ++r) {
      for (const std::string& word : words) {
        EXPECT_TRUE(contains(errors[r], word)) << mesh << ", rank " << r << ": " << errors[r];
      }
    }
  }
}

TEST(Ties, RejectsMisspelledNamesOnEveryRank) {
  const std::vector<std::string> meshes = {"dp=1", "pp=2", "pp=3", "tp=2"};
  std::vector<Layer> list = tie_list();
  list[2].tied = {{"w", {"ownr", "w"}}};
  expect_on_all(list, meshes, {"\"ownr\"", "earlier layer"});
  list = tie_list();
  list[2].tied = {{"w", {"owner", "wieght"}}};
  expect_on_all(list, meshes,
                {"Layer \"b\" is tied to \"wieght\" of layer \"owner\"", "It has \"w\", \"v\""});
  list = tie_list();
  list[3].tied = {{"w", {"owner", "w"}}, {"vv", {"owner", "v"}}};
  expect_on_all(list, meshes, {"Layer \"c\"", "\"vv\"", "It has \"w\", \"v\""});
  list = tie_list();
  list[3].make = [](const LayerContext& at) {
    return AnyModule(TieMix(at.tied("weight"), at::Tensor()));
  };
  expect_on_all(list, meshes, {"LayerContext::tied(\"weight\") in layer \"c\""});
}

TEST(Ties, RejectsASecondCopyOnARankOnEveryRank) {
  std::vector<Layer> list = tie_list();
  const auto own = [](const LayerContext&) {
    return AnyModule(TieMix(at::Tensor(), at::Tensor()));
  };
  list[4].make = own;  // two stages: with "c", which has a separate copy there
  expect_on_all(list, {"dp=1", "pp=2", "dp=2", "tp=2"},
                {"Layer \"d\"", "which layer", "a different tensor", "at.tied(\"w\")"});
  // With one of these layers per rank, each rank needs a copy.
  list = tie_list();
  list[1].make = list[2].make = list[3].make = own;
  list.erase(list.begin() + 4);
  list.back().tied = {};
  list.back().make = [](const LayerContext&) { return AnyModule(TieLoss(at::Tensor())); };
  list.erase(list.begin());
  ParallelOptions options = tie_options();
  options.split = {1, 1, 2};
  EXPECT_EQ(tie_train(list, "pp=3", options).matrices.size(), 3u);
}

TEST(Ties, RejectsCopiesOfAnotherShapeOnEveryRank) {
  std::vector<Layer> list = {tie_own("first"), tie_own("owner"), tie_to("b", "owner"),
                             tie_to("wide", "owner")};
  list.back().make = [](const LayerContext& at) {
    return AnyModule(TieMix(at.tied("w"), at::Tensor(), 2 * kTieWidth));
  };
  ParallelOptions options = tie_options();
  const std::map<std::string, std::vector<int>> ways = {{"pp=2", {3, 1}}, {"pp=3", {2, 1, 1}}};
  for (const auto& [mesh, split] : ways) {
    options.split = split;
    for (const std::string& error : tie_errors(list, Axes(std::string_view(mesh)), options)) {
      EXPECT_TRUE(contains(error, "\"owner.w\" [4, 4]") && contains(error, "[8, 8]"))
          << mesh << ": " << error;
    }
  }
}

}  // namespace
}  // namespace tessera
