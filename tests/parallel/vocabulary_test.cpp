// A language model whose vocabulary is not divisible by any number of ranks: equal losses on every
// mesh, and checkpoints without padding.

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/init.h"
#include "tessera/models/language_model.h"
#include "tessera/parallel/parallelize.h"
#include "tests/parallel/save_nets.h"

namespace tessera::save_test {
namespace {

constexpr std::int64_t kVocab = 101, kSequences = 8, kTokenCount = 12;

struct VocabRun {
  const char* mesh;
  int stage;
  std::int64_t pad_to;
  std::string describe() const { return str(mesh, ", stage ", stage, ", padded to ", pad_to); }
};
const std::vector<VocabRun> kVocabRuns = {
    {"dp=1", 0, 1},      {"dp=1", 0, 64}, {"tp=2", 0, 1},      {"tp=3", 1, 1},
    {"dp=2,tp=2", 3, 1}, {"tp=3", 0, 8},  {"tp=2,pp=2", 1, 1},
};

ModelShape odd_shape(bool tied) {
  ModelShape shape = gpt_shape(2, 36, 6, kVocab, 20);
  if (!tied) {
    shape.positions = 0;
    shape.swiglu = true;
    shape.biases = shape.tied = false;
    shape.ffn = 48;
  }
  return shape;
}

struct VocabResult {
  std::vector<double> losses;
  Contents saved;
};

// Loads `from` if it is given, trains up to a step and saves. Returns the contents of the files.
VocabResult run_vocab(const VocabRun& run, bool tied, std::int64_t to, const std::string& into,
                      const std::string& from = "") {
  const ModelShape shape = odd_shape(tied);
  VocabResult result;
  expect_no_errors(
      on_ranks(static_cast<int>(Axes(run.mesh).world()),
               [&](const comm::Group& world) {
                 ParallelOptions options;
                 // The loss is a sum over a micro-batch, so all runs use the same micro-batches.
                 const int micros = 2 / static_cast<int>(Axes(run.mesh).dp());
                 options.micro_batches = micros;
                 options.engine.stage = run.stage;
                 options.engine.optimizer = zero::AdamW{.lr = 0.02, .weight_decay = 0.1};
                 options.initial = models::initial_values(shape);
                 ParallelModel model(models::layers_of(shape, {}, run.pad_to),
                                     comm::Mesh(world, run.mesh), options);
                 const comm::Mesh& mesh = model.mesh();
                 std::int64_t step = from.empty() ? 0 : load(model, from).step;
                 const std::int64_t rows = kSequences / 2;
                 for (; step < to; ++step) {
                   const at::Tensor all = at::arange(kSequences * kTokenCount, at::kLong)
                                              .view({kSequences, kTokenCount})
                                              .mul(7 + step)
                                              .remainder(kVocab);
                   std::vector<MicroBatch> batches;
                   for (int k = 0; k < micros; ++k) {
                     const at::Tensor ids =
                         all.narrow(0, (mesh.dp().rank() * micros + k) * rows, rows);
                     batches.push_back({ids, (ids * 3 + 1).remainder(kVocab)});
                   }
                   const double loss = model.step(batches).loss;
                   if (world.rank() == 0) result.losses.push_back(loss);
                 }
                 save(model, into);
               }),
      run.describe());
  checkpoint::Checkpoint saved(str(into, "/", checkpoint::folder_name(to)));
  for (const ParamSpec& spec : saved.about().params) {
    EXPECT_FALSE(spec.name.starts_with("tok.") && spec.shape[0] != kVocab) << spec.name;
    for (const auto& [state, dtype] : saved.states(spec.name)) {
      at::Tensor values = at::empty(spec.shape, at::kFloat);
      saved.load({{spec.name,
                   state,
                   dtype,
                   {{0, 0, values.numel()}},
                   static_cast<std::byte*>(values.mutable_data_ptr())}});
      result.saved[spec.name + " " + state] = values;
    }
  }
  return result;
}

TEST(SaveVocabulary, AnyTpContinuesFromAnyOther) {
  for (const bool tied : {true, false}) {
    const Folder folder;
    const VocabResult alone = run_vocab(kVocabRuns[0], tied, 4, folder / "alone");
    ASSERT_TRUE(alone.saved.contains(tied ? "tok.weight moment2" : "head.weight moment2"));
    for (const std::size_t first : {1, 2, 4}) {
      const VocabRun& from = kVocabRuns[first];
      const std::string dir = folder / from.describe();
      const VocabResult saved = run_vocab(from, tied, 2, dir);
      for (std::size_t i = 0; i < saved.losses.size(); ++i) {
        EXPECT_NEAR(saved.losses[i] / alone.losses[i], 1, 1e-5) << from.describe();
      }
      for (const VocabRun& to : kVocabRuns) {
        const std::string where = str(tied ? "tied, " : "", from.describe(), " → ", to.describe());
        expect_equal(run_vocab(to, tied, 2, folder / (where + " at once"), dir).saved, saved.saved,
                     where);
        if (first != 2) continue;  // only a few continue
        const VocabResult later = run_vocab(to, tied, 4, folder / where, dir);
        ASSERT_EQ(later.losses.size(), 2u);
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_NEAR(later.losses[i] / alone.losses[i + 2], 1, 1e-4) << where;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::save_test
