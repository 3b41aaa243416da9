// Compares meshes with one process for every family of models: rows of several documents, dropout,
// a vocabulary that must be padded. For every mesh, stage, number of micro-batches and
// recomputation, the losses and gradient norms are those of one process.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/models/init.h"
#include "tessera/models/language_model.h"
#include "tessera/parallel/parallelize.h"
#include "tests/models/families.h"
#include "tests/ranks.h"

namespace tessera {
namespace {

constexpr std::int64_t kFamilyRows = 4, kFamilyTokens = 20;

struct FamilyMesh {
  const char* mesh;
  int stage, micro_batches;
  bool sequence;
  nn::Recompute recompute;
  std::int64_t pad_to;
  std::string text() const {
    return str(mesh, ", stage ", stage, ", ", micro_batches, " micro-batches",
               sequence ? ", sequence, " : ", ", nn::name(recompute), ", padded to ", pad_to);
  }
};

struct FamilyHistory {
  std::vector<double> losses, norms;
};

ParallelOptions family_options(const ModelShape& shape, const FamilyMesh& run, double dropout) {
  ParallelOptions options;
  options.sequence_parallel = run.sequence;
  options.micro_batches = run.micro_batches;
  options.recompute = run.recompute;
  options.dropout = dropout;
  options.attention_dropout = dropout / 2;
  options.seed = 5;
  ModelShape lively = shape;
  lively.init_range = 0.2;
  options.initial = models::initial_values(lively);
  options.engine.stage = run.stage;
  options.engine.optimizer = zero::AdamW{.lr = 0.01};
  return options;
}

FamilyHistory train_family(const ModelShape& shape, const FamilyMesh& run, double dropout,
                           bool documents) {
  FamilyHistory history;
  over(static_cast<int>(Axes(run.mesh).world()), [&](const comm::Group& world) {
    const comm::Mesh mesh(world, Axes(run.mesh));
    ParallelModel model(models::layers_of(shape, {}, run.pad_to), mesh,
                        family_options(shape, run, dropout));
    const std::int64_t own = kFamilyRows / mesh.axes().dp(), rows = own / run.micro_batches;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor all = torch::arange(kFamilyRows * kFamilyTokens, torch::kLong)
                                 .view({kFamilyRows, kFamilyTokens});
      const at::Tensor ids = (all * (7 + step) + all.div(5, "floor")).remainder(shape.vocab);
      const at::Tensor starts = models::test::packed_starts(kFamilyRows, kFamilyTokens);
      std::vector<MicroBatch> batches;
      for (int k = 0; k < run.micro_batches; ++k) {
        const std::int64_t first = mesh.dp().rank() * own + k * rows;
        const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, rows); };
        batches.push_back({part(ids), part((ids * 3 + 1).remainder(shape.vocab)),
                           documents ? part(starts) : at::Tensor(),
                           static_cast<std::uint64_t>(first)});
      }
      ParallelModel::StepNumbers numbers;
      numbers.tokens = static_cast<double>(own * kFamilyTokens);
      numbers.step = static_cast<std::uint64_t>(step);
      const zero::StepInfo info = model.start_step(batches, numbers).get();
      if (mesh.world().rank() != 0) continue;
      history.losses.push_back(info.loss);
      history.norms.push_back(info.grad_norm);
    }
  });
  return history;
}

using nn::Recompute;
const FamilyMesh kOneProcess = {"dp=1", 0, 1, false, Recompute::none, 1};
const std::vector<FamilyMesh> kFamilyMeshes = {
    {"dp=1", 0, 4, false, Recompute::selective, 8}, {"dp=2", 3, 2, false, Recompute::full, 1},
    {"tp=2", 1, 2, true, Recompute::selective, 1},  {"pp=2", 2, 4, false, Recompute::none, 64},
    {"dp=2,tp=2", 2, 1, false, Recompute::none, 1}, {"tp=2,pp=2", 0, 2, true, Recompute::full, 8},
};

TEST(FamiliesOnMeshes, EqualOneProcess) {
  const std::vector<ModelShape> all = models::test::families();
  for (const std::size_t index : {0, 3, 4, 6, 7}) {  // these cover the differences of the others
    const ModelShape& shape = all[index];
    for (const double dropout : {0.0, 0.2}) {
      if (dropout == 0 && index != 0) continue;
      const FamilyHistory wanted = train_family(shape, kOneProcess, dropout, true);
      ASSERT_EQ(wanted.losses.size(), 2u);
      for (const FamilyMesh& run : kFamilyMeshes) {
        const FamilyHistory got = train_family(shape, run, dropout, true);
        for (std::size_t i = 0; i < wanted.losses.size(); ++i) {
          EXPECT_NEAR(got.losses[i] / wanted.losses[i], 1, 2e-5)
              << shape.name << " on " << run.text() << ", dropout " << dropout << ", step " << i;
          EXPECT_NEAR(got.norms[i] / wanted.norms[i], 1, 2e-4)
              << shape.name << " on " << run.text() << ", dropout " << dropout << ", step " << i;
        }
      }
    }
  }
}

// Checks that the test above is sensitive to documents and dropout.
TEST(FamiliesOnMeshes, DocumentsAndDropoutChangeTheResult) {
  const ModelShape shape = models::test::families().front();
  const FamilyHistory plain = train_family(shape, kOneProcess, 0, false);
  const FamilyHistory packed = train_family(shape, kOneProcess, 0, true);
  const FamilyHistory dropped = train_family(shape, kOneProcess, 0.2, false);
  EXPECT_GT(std::abs(plain.losses[0] / packed.losses[0] - 1), 1e-3);
  EXPECT_GT(std::abs(plain.losses[0] / dropped.losses[0] - 1), 1e-3);
}

}  // namespace
}  // namespace tessera
