// Fine-tuning with adapters: on any mesh, at any stage and with any schedule equal to one process,
// with the memory and the traffic of the plan; saved without the base model, and resumed with it.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/peft.h"
#include "tessera/train/adapters.h"
#include "tessera/train/model_files.h"
#include "tessera/train/trainer.h"
#include "tests/text.h"
#include "tests/train/tuning.h"

namespace tessera::train {
namespace {

using namespace tuning;

TEST(LoraTraining, MatchesOneProcessOnEveryMeshAndStage) {
  int turn = 0;
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const Cut& cut : {Cut{2, 1, 1}, Cut{1, 2, 1}, Cut{1, 1, 2}, Cut{2, 2, 1}, Cut{2, 1, 2},
                           Cut{1, 2, 2}, Cut{2, 2, 2}}) {
      for (int stage = 0; stage < 4; ++stage) {
        if (cut.dp == 1 && stage % 3 != 0) continue;
        if (cut.dp * cut.tp * cut.pp > 4 && stage % 2 == 0) continue;
        const char* targets = ++turn % 3 == 0 ? "auto" : turn % 3 == 1 ? "all" : "fc,o";
        RunConfig config = on_cut(tuned(model, targets), cut, turn % 2 == 0 && cut.pp == 1 ? 1 : 4);
        config.zero = stage;
        config.sequence_parallel = cut.tp > 1 && turn % 2 == 0;
        config.set("recompute", turn % 5 == 0 ? "full" : turn % 5 == 1 ? "selective" : "none");
        if (cut.pp > 1 && stage < 3 && turn % 4 == 0) config.schedule = ScheduleChoice::zb_h1;
        if (cut.pp > 1 && turn % 4 == 1)
          config.schedule = ScheduleChoice::interleaved, config.chunks = 2;
        if (cut.pp > 1 && turn % 4 == 2) config.split = "3,1";
        expect_same(config);
      }
    }
  }
}

// All categories of memory match the plan, and are small.
TEST(LoraTraining, MemoryMatchesThePlan) {
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const char* targets : {"auto", "all"}) {
      for (const char* recompute : {"none", "full"}) {
        RunConfig config = on_cut(tuned(model, targets), {2, 1, 1}, 2);
        config.set("recompute", recompute);
        config.zero = 2;
        const Outcomes got = run_all(config);
        for (const char* row : {"params", "grads", "optimizer", "activations", "peak"}) {
          const auto want = static_cast<double>(got.summaries[0].predicted.memory.at(row));
          EXPECT_NEAR(static_cast<double>(got.summaries[0].measured.memory.at(row)), want,
                      (std::string(row) == "peak" ? 0.1 : 0.02) * want)
              << words(config) << " " << row;
        }
        const auto& memory = got.summaries[0].measured.memory;
        EXPECT_LT(memory.at("grads") + memory.at("optimizer"), memory.at("params") / 2);
      }
    }
  }
}

TEST(LoraTraining, SavesOnlyAdaptersAndResumes) {
  const Folder folder;
  RunConfig config = on_cut(tuned("llama-tiny"), {2, 1, 1}, 1);
  config.save = folder.path;
  config.zero = 1;
  std::vector<double> whole;
  std::string hash;
  on_ranks(config, [&](Trainer& trainer, int rank) {
    for (int step = 0; step < kTuningSteps; ++step) {
      const StepMetrics& metrics = trainer.step();
      if (rank == 0) whole.push_back(metrics.loss);
      if (step == 1) trainer.save();
    }
    trainer.finish_saving();
    if (const Summary summary = trainer.summary(); rank == 0) hash = summary.params_hash;
  });
  std::string at;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    if (entry.is_directory()) at = entry.path();
  }
  checkpoint::Checkpoint from(at);
  ASSERT_FALSE(from.about().params.empty());
  for (const ParamSpec& spec : from.about().params) {
    EXPECT_TRUE(is_adapter_param(spec.name)) << spec.name;
  }
  EXPECT_TRUE(contains(from.about().model, "\"rank\":4"));

  // Bitwise equal on the same mesh, and within rounding on another.
  for (const Cut& cut : {Cut{2, 1, 1}, Cut{1, 2, 1}, Cut{1, 1, 2}}) {
    RunConfig again = on_cut(config, cut, cut.pp > 1 ? 4 : 1);
    again.resume = at;
    again.save.clear();
    again.zero = cut.dp > 1 ? 3 : 0;
    on_ranks(again, [&](Trainer& trainer, int rank) {
      std::vector<std::string> notes;
      ASSERT_TRUE(trainer.resume(notes));
      for (std::size_t step = 2; step < whole.size(); ++step) {
        const double loss = trainer.step().loss;
        EXPECT_NEAR(loss, whole[step], 1e-4 * whole[step]) << words(again) << " rank " << rank;
      }
      const Summary summary = trainer.summary();
      EXPECT_TRUE(cut.dp == 1 || summary.params_hash == hash) << words(again);
    });
  }

  // Rejects another base, another rank, or no adapters.
  const auto refused = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig other = on_cut(config, {1, 1, 1}, 1);
    other.resume = at;
    other.save.clear();
    change(other);
    std::string words;
    on_ranks(other, [&](Trainer& trainer, int) {
      std::vector<std::string> notes;
      words = error_of([&] { trainer.resume(notes); });
    });
    return words;
  };
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.seed = 6; }), "fingerprint"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.lora_rank = 8; }), "lora was"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.lora_targets = "q"; }), "lora was"));
  EXPECT_TRUE(contains(refused([](RunConfig& c) { c.lora_rank = 0; }), "lora was"));
  EXPECT_EQ(refused([](RunConfig& c) { c.set("layout", "bf16"); }), "");
}

// A run that was started from another: resumed only with that model, and read as one model.
TEST(LoraTraining, CheckpointsAreReadAsTheMergedModel) {
  const Folder base, run;
  const auto train_and_save = [](const RunConfig& config, int steps) {
    on_ranks(config, [&](Trainer& trainer, int) {
      for (int step = 0; step < steps; ++step) trainer.step();
      trainer.save();
      trainer.finish_saving();
    });
  };
  RunConfig first = tuned("llama-tiny");
  first.lora_rank = 0;
  first.save = base.path;
  train_and_save(first, 1);
  RunConfig second = tuned("llama-tiny", "v,gate,o");
  second.model_name = RunConfig().model_name;
  second.layers = second.hidden = second.heads = second.vocab = 0;
  second.init_from = base.path;
  second.save = run.path;
  second.axes.set(Axis::tp, 2);
  train_and_save(second, 2);

  const auto whole = open_model(base.path), merged = open_model(run.path);
  EXPECT_FALSE(merged->shape().lora.any());
  const ModelShape& shape = merged->shape();
  checkpoint::Checkpoint adapters(checkpoint::find_latest(run.path).folder);
  const auto adapter = [&](const ParamSpec& spec) {
    const at::Tensor values = at::empty(spec.shape);
    adapters.load({{spec.name,
                    "param",
                    DType::f32,
                    {{0, 0, values.numel()}},
                    static_cast<std::byte*>(values.data_ptr()),
                    {}}});
    return values;
  };
  ModelShape asked = shape;
  asked.lora = {second.lora_rank, second.lora_alpha, second.lora_targets};
  const auto weight = [&](ModelFiles& files, const char* linear, std::int64_t rows,
                          std::int64_t columns) {
    ParamSpec spec;
    spec.name = str("blocks.2.", linear, ".weight");
    spec.shape = {rows, columns};
    const at::Tensor values = at::empty(spec.shape);
    files.read(spec, values);
    return values;
  };
  const std::int64_t qkv = shape.q_width() + 2 * shape.kv_width(), h = shape.hidden;
  const auto same = [&](const char* linear, std::int64_t rows, std::int64_t columns) {
    at::Tensor want = weight(*whole, linear, rows, columns);
    for (const Adapter& each : adapters_of(asked)) {
      if (each.linear != linear) continue;
      const AdapterSpecs specs = specs_of(each, asked.lora.rank, "blocks.2");
      const at::Tensor a = adapter(specs.a), b = adapter(specs.b);
      EXPECT_TRUE(b.any().item<bool>()) << linear;
      // v is the last of qkv, gate the first of fc.
      want.narrow(0, each.target == "v" ? rows - each.out : 0, each.out)
          .add_(b.mm(a), asked.lora.scale());
    }
    EXPECT_TRUE(at::allclose(weight(*merged, linear, rows, columns), want, 1e-5, 1e-6)) << linear;
  };
  same("qkv", qkv, h);
  same("proj", h, shape.q_width());
  same("fc", 2 * shape.ffn, h);
  same("proj2", h, shape.ffn);

  // If the base model was moved, --base names it; another model is rejected.
  EXPECT_TRUE(std::filesystem::path(adapters.about().extra.at("init_from")).is_absolute());
  const std::string moved = base.path + "-moved";
  std::filesystem::rename(base.path, moved);
  const std::string gone = error_of([&] { open_model(run.path); });
  EXPECT_TRUE(contains(gone, "missing") && contains(gone, "--base")) << gone;
  EXPECT_TRUE(at::equal(weight(*open_model(run.path, moved), "qkv", qkv, h),
                        weight(*merged, "qkv", qkv, h)));
  std::filesystem::rename(moved, base.path);
  EXPECT_TRUE(contains(error_of([&] { open_model(base.path, base.path); }), "--base: "));

  // A folder for peft identifies the base model of its adapters, and another model is rejected.
  const Folder out, others;
  const std::string folder = out.path + "/adapters";
  huggingface::export_adapter(adapters, folder);
  const std::string unnamed = error_of([&] { open_model(folder); });
  EXPECT_TRUE(contains(unnamed, "--base")) << unnamed;
  const std::string named = out.path + "/named";
  huggingface::AdapterOptions options;
  options.base = base.path;
  huggingface::export_adapter(adapters, named, options);
  for (const auto& files : {open_model(folder, base.path), open_model(named)}) {
    EXPECT_FALSE(files->shape().lora.any());
    EXPECT_EQ(files->type(), whole->type());
    EXPECT_TRUE(at::equal(weight(*files, "qkv", qkv, h), weight(*merged, "qkv", qkv, h)));
    EXPECT_TRUE(
        at::equal(weight(*files, "proj2", h, shape.ffn), weight(*merged, "proj2", h, shape.ffn)));
  }
  // Adapters cannot be the base model of adapters.
  for (const std::string& adapters_alone : {folder, named}) {
    const std::string refused = error_of([&] { open_model(folder, adapters_alone); });
    EXPECT_TRUE(contains(refused, "--base: ") && contains(refused, "a folder without a model"))
        << refused;
  }
  RunConfig third = second;
  third.lora_rank = 0;
  third.lora_from = folder;
  ASSERT_FALSE(huggingface::AdapterFolder(folder, shape).base_fingerprint().empty());
  EXPECT_EQ(error_of([&] { check_adapters(third, shape); }), "");
  EXPECT_EQ(adapters_note(third, shape), "");
  first.seed = 6;
  first.save = others.path;
  train_and_save(first, 1);
  third.init_from = others.path;
  EXPECT_TRUE(contains(error_of([&] { check_adapters(third, shape); }),
                       "is not the model that the adapters were trained on"));
  EXPECT_TRUE(contains(error_of([&] { open_model(folder, others.path); }), "--base: "));
  third.init_from.clear();  // nothing to compare with
  EXPECT_TRUE(contains(adapters_note(third, shape), "the models may differ"));
  // Another model at the path of the base model is rejected too.
  std::filesystem::remove_all(base.path);
  std::filesystem::rename(others.path, base.path);
  EXPECT_TRUE(contains(error_of([&] { open_model(run.path); }), "--from: "));
}

TEST(LoraTraining, RejectsUnsupportedSettings) {
  const auto problem = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = tuned("llama-tiny");
    change(config);
    return error_of([&] { resolve(config, static_cast<int>(config.axes.world())); });
  };
  EXPECT_EQ(problem([](RunConfig&) {}), "");
  EXPECT_TRUE(contains(problem([](RunConfig& c) { c.lora_targets = "c_attn"; }), "some of q, k"));
  EXPECT_TRUE(contains(problem([](RunConfig& c) { c.lora_from = "/no/such"; }), "--lora-from: "));
  EXPECT_TRUE(contains(problem([](RunConfig& c) {
                         c.overlap_tp = true;
                         c.axes.set(Axis::tp, 2);
                       }),
                       "--overlap-tp"));
}

}  // namespace
}  // namespace tessera::train
