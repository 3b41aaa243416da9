// tessera::save and tessera::load of a model that is cut along three axes.

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/parallel/parallelize.h"
#include "tests/combinations.h"
#include "tests/parallel/save_nets.h"

namespace tessera::save_test {
namespace {

constexpr std::int64_t kWidth = 8, kRows = 16;
constexpr int kMicroBatches = 2;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const LayerContext& at)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module(
            "up", tensor_parallel::ColumnParallelLinear(at.tp, at.linear("up", kWidth, 12)))),
        down(register_module(
            "down", tensor_parallel::RowParallelLinear(at.tp, at.linear("down", 12, kWidth)))),
        calls(register_buffer("calls", at::zeros({}, at::kLong))) {}
  at::Tensor forward(const at::Tensor& x) {
    calls.add_(1);
    return x + down->forward(up->forward(norm->forward(x)).tanh());
  }
  torch::nn::LayerNorm norm;
  tensor_parallel::ColumnParallelLinear up;
  tensor_parallel::RowParallelLinear down;
  at::Tensor calls;
};
TORCH_MODULE(Block);

struct LossImpl : torch::nn::Module {
  LossImpl() : linear(register_module("linear", torch::nn::Linear(kWidth, 3))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return torch::mse_loss(linear->forward(x), y);
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Loss);

struct Run3d {
  const char* mesh;
  int stage;
  int ranks() const { return static_cast<int>(Axes(mesh).world()); }
  std::string describe() const { return str(mesh, ", stage ", stage); }
};
const std::vector<Run3d> kRuns = {{"dp=1", 0},
                                  {"dp=2", 3},
                                  {"tp=2", 0},
                                  {"pp=2", 1},
                                  {"dp=2,tp=2", 2},
                                  {"dp=2,pp=2", 1},
                                  {"tp=2,pp=2", 0},
                                  {"dp=2,tp=2,pp=2", 2},
                                  {"dp=4,dp_replicate=2", 3},
                                  {"dp=4,dp_replicate=2,tp=2", 1}};

// Sizes of the axes, and the stage.
IndexRow settings_of(const Run3d& run) {
  IndexRow row = {static_cast<std::size_t>(run.stage)};
  const Axes axes(run.mesh);
  for (const Axis axis : kAllAxes) row.push_back(static_cast<std::size_t>(axes.size(axis)));
  return row;
}

ParallelModel make_model(const comm::Group& world, const Run3d& run) {
  std::vector<Layer> layers;
  layers.push_back({"lift", [](const LayerContext&) {
                      return torch::nn::AnyModule(torch::nn::Linear(4, kWidth));
                    }});
  for (int i = 0; i < 3; ++i) {
    layers.push_back({str("blocks.", i),
                      [](const LayerContext& at) { return torch::nn::AnyModule(Block(at)); }});
  }
  layers.push_back({"loss", [](const LayerContext&) { return torch::nn::AnyModule(Loss()); }});
  ParallelOptions options;
  options.micro_batches = kMicroBatches;
  options.engine.stage = run.stage;
  options.engine.optimizer = zero::AdamW{.lr = 0.02};
  options.initial = [](const ParamSpec& spec) {
    Initial initial = initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.3;
    return initial;
  };
  return ParallelModel(std::move(layers), comm::Mesh(world, run.mesh), options);
}

void train(ParallelModel& model, std::int64_t from, std::int64_t to) {
  const comm::Mesh& mesh = model.mesh();
  const std::int64_t rows = kRows / mesh.axes().dp() / kMicroBatches;
  for (std::int64_t step = from; step < to; ++step) {
    const at::Tensor all = numbers({kRows, 4}, 70 + static_cast<std::uint64_t>(step));
    std::vector<MicroBatch> batches;
    for (int k = 0; k < kMicroBatches; ++k) {
      const at::Tensor x = all.narrow(0, (mesh.dp().rank() * kMicroBatches + k) * rows, rows);
      batches.push_back({x, x.narrow(1, 0, 3) * 2});
    }
    model.step(batches);
  }
}

// Loads `from` if it is given, trains up to a step and saves. Returns the contents of the files.
Contents run_3d(const Run3d& run, std::int64_t to, const std::string& into,
                const std::string& from = "") {
  expect_no_errors(on_ranks(run.ranks(),
                            [&](const comm::Group& world) {
                              ParallelModel model = make_model(world, run);
                              std::int64_t done = 0;
                              if (!from.empty()) {
                                done = load(model, from).step;
                                EXPECT_EQ(model.engine().steps(), done);
                              }
                              train(model, done, to);
                              save(model, into);
                            }),
                   run.describe());
  Contents all;
  checkpoint::Checkpoint saved(str(into, "/", checkpoint::folder_name(to)));
  for (const ParamSpec& spec : saved.about().params) {
    for (const auto& [state, dtype] : saved.states(spec.name)) {
      at::Tensor values =
          at::empty(spec.shape, dtype == checkpoint::DType::i64 ? at::kLong : at::kFloat);
      saved.load({{spec.name,
                   state,
                   dtype,
                   {{0, 0, values.numel()}},
                   static_cast<std::byte*>(values.mutable_data_ptr())}});
      all[spec.name + " " + state] = values;
    }
  }
  return all;
}

TEST(SaveMesh, EveryMeshContinuesFromEveryOther) {
  const Folder folder;
  const Contents alone = run_3d(kRuns[0], 4, folder / "alone");
  for (const char* const name : {"lift.weight param", "blocks.2.up.weight moment1",
                                 "blocks.0.calls buffer", "blocks.2.calls buffer"}) {
    ASSERT_TRUE(alone.contains(name)) << name;
  }
  EXPECT_EQ(alone.at("blocks.1.calls buffer").item<std::int64_t>(), 4 * kMicroBatches);
  std::vector<std::pair<Run3d, Run3d>> both;
  for (const std::size_t first : {0, 1, 3, 4, 7}) {
    for (const Run3d& to : kRuns) both.emplace_back(kRuns[first], to);
  }
  std::map<std::string, Contents> known;  // of checkpoints, by mesh
  for (const auto& [from, to] : covering_pairs(both, [](const auto& pair) {
         IndexRow row = settings_of(pair.first), second = settings_of(pair.second);
         row.insert(row.end(), second.begin(), second.end());
         return row;
       })) {
    const std::string dir = folder / from.mesh;
    if (!known.contains(from.mesh)) known[from.mesh] = run_3d(from, 2, dir);
    const std::string where = str(from.describe(), " → ", to.describe());
    expect_equal(run_3d(to, 2, folder / str(where, " at once"), dir), known.at(from.mesh), where);
    const Contents later = run_3d(to, 4, folder / where, dir);
    expect_close(later, alone, where);
  }
}

// An engine without a mesh loads a checkpoint of a mesh, and the other way round: names are equal.
struct WholeImpl : torch::nn::Module {
  WholeImpl() {
    lift = register_module("lift", torch::nn::Linear(4, kWidth));
    auto list = register_module("blocks", std::make_shared<torch::nn::Module>());
    for (int i = 0; i < 3; ++i) {
      LayerContext at;
      at.name = str("blocks.", i);
      blocks.push_back(list->register_module(str(i), Block(at)));
    }
    loss = register_module("loss", Loss());
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    at::Tensor h = lift->forward(x);
    for (Block& block : blocks) h = block->forward(h);
    return loss->forward(h, y);
  }
  torch::nn::Linear lift{nullptr};
  std::vector<Block> blocks;
  Loss loss{nullptr};
};
TORCH_MODULE(Whole);

TEST(SaveMesh, EngineWithoutAMeshLoadsACheckpointOfAMesh) {
  const Folder folder;
  const Contents saved = run_3d(kRuns.back(), 2, folder / "mesh");
  const zero::Options options = {.stage = 1, .optimizer = zero::AdamW{.lr = 0.02}};
  expect_no_errors(on_ranks(3,
                            [&](const comm::Group& group) {
                              DataParallel training(Whole(), group, options);
                              EXPECT_EQ(load(training, folder / "mesh").step, 2);
                              save(training, folder / "alone");
                            }),
                   "alone");
  expect_equal(run_3d(kRuns[6], 2, folder / "again", folder / "alone"), saved, "and back");
}

}  // namespace
}  // namespace tessera::save_test
