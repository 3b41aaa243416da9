// tessera import: settings, notes on the rest, and that any input is converted or refused.

#include "tessera/cli/import.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tessera/cli/import_deepspeed_keys.h"
#include "tessera/cli/import_megatron_flags.h"
#include "tessera/cli/plan_flags.h"
#include "tessera/core/errors.h"
#include "tessera/planner/plan.h"
#include "tests/cli/imported.h"
#include "tests/sanitized.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/toml.h"

namespace tessera::cli {
namespace {

constexpr const char* kZero2 = R"({
  "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "gradient_clipping": 1.0, "steps_per_print": 100,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 5e8,
    "contiguous_gradients": true, "offload_optimizer": {"device": "cpu"},
    "allgather_bucket_size": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8,
    "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 1000,
    "warmup_num_steps": 50}},
  "activation_checkpointing": {"partition_activations": false}})";

Imported deepspeed(const std::string& text, int ranks = 0) {
  return import_deepspeed(text, "ds.json", ranks);
}

TEST(ImportDeepSpeed, ImportsATypicalConfig) {
  const Imported got = deepspeed(kZero2);
  const planner::RunConfig& s = got.settings();
  EXPECT_EQ(s.zero, 2);
  EXPECT_EQ(s.axes.dp(), 8);  // 256 / (4 · 8)
  EXPECT_EQ(s.global_batch, 256);
  EXPECT_EQ(s.micro_batch, 4);
  EXPECT_EQ(s.grad_accum, 8);
  EXPECT_EQ(s.layout.name, "bf16");
  EXPECT_EQ(s.bucket_bytes, 1'000'000'000);  // 5e8 gradients of 2 bytes
  EXPECT_EQ(s.optimizer, OptimizerChoice::adamw);
  EXPECT_EQ(s.lr, 3e-4);
  EXPECT_EQ(s.beta2, 0.95);
  EXPECT_EQ(s.lr_schedule, LrSchedule::Kind::cosine);
  EXPECT_EQ(s.min_lr_ratio, 1e-4);
  EXPECT_EQ(s.warmup, 50);
  EXPECT_EQ(s.steps, 1000);
  EXPECT_EQ(s.recompute, Recompute::full);
  ASSERT_NE(find_note(got, "zero_optimization.offload_optimizer"), nullptr);
  EXPECT_EQ(find_note(got, "zero_optimization.offload_optimizer")->fate, Fate::missing);
  EXPECT_EQ(find_note(got, "zero_optimization.allgather_bucket_size")->fate, Fate::open);
  EXPECT_EQ(find_note(got, "zero_optimization.contiguous_gradients")->fate, Fate::not_needed);
  EXPECT_FALSE(got.complete());
  EXPECT_EQ(nlohmann::json::parse(got.json())["settings"]["zero"]["value"], 2);
}

TEST(ImportDeepSpeed, PlansTheImportedSettings) {
  TESSERA_NEEDS_TOML();
  const planner::RunConfig q = planned(deepspeed(kZero2), "gpt2-xl");
  EXPECT_EQ(q.zero, 2);
  EXPECT_EQ(q.dp(), 8);
  EXPECT_EQ(q.grad_accum, 8);
  EXPECT_EQ(q.global_batch, 256);
  EXPECT_EQ(q.bucket_bytes, 1e9);
  EXPECT_EQ(q.recompute, planner::Recompute::full);
}

// The plan of a config file describes the run, including choices that the file leaves to the run.
TEST(PlanConfig, DescribesTheRunThatTheFileStarts) {
  TESSERA_NEEDS_TOML();
  const auto read = [](const std::string& text) {
    const TemporaryFolder folder;
    std::ofstream(folder / "run.toml") << text;
    planner::RunConfig settings = planner::RunConfig::for_plan();
    read_plan_config(folder / "run.toml", settings);
    return planner::resolve(planner::look_up(settings, make_catalog()));
  };
  const std::string mine =
      "[model]\nmodel = \"gpt-tiny\"\n[batch]\nseq = 0\n[run]\ndevice = \"cpu\"\n";
  const planner::RunConfig four = read(mine + "[parallelism]\nranks = 4\ndp = 0\nzero = 3\n");
  EXPECT_EQ(four.dp(), 4);
  EXPECT_EQ(four.zero, 3);
  EXPECT_EQ(four.seq, planner::kRunSeq);
  EXPECT_EQ(four.hardware.name, "cpu");
  EXPECT_EQ(four.software, planner::Software::tessera);
  EXPECT_EQ(read(mine + "[parallelism]\nranks = 0\ndp = 0\n").dp(), planner::kRunRanks);
  EXPECT_EQ(read(mine + "[parallelism]\nranks = 0\ndp = 1\n").dp(), 1);
  const planner::RunConfig two = read(mine + "[parallelism]\nranks = 0\ndp = 0\ntp = 2\n");
  EXPECT_EQ(two.tp(), 2);
  EXPECT_EQ(two.dp(), 1);
}

TEST(PlanConfig, ConvertsSettingsOfARun) {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  const auto take = [&](const char* name, const char* text) {
    take_run_setting(name, text, settings);
  };
  take("zero", "0");
  take("dp", "0");              // derived from the number of ranks
  take("order", "sequential");  // order of samples; in a plan it is of axes
  take("metrics", "x.jsonl");   // a plan does not have it
  take("bucket-mb", "1.5");
  take("micro-batch", "4");
  EXPECT_TRUE(settings.has("zero"));
  EXPECT_FALSE(settings.has("dp"));
  EXPECT_FALSE(settings.has("order"));
  const planner::RunConfig question = planner::resolve(planner::look_up(settings, make_catalog()));
  EXPECT_EQ(question.bucket_bytes, 1.5e6);
  EXPECT_EQ(question.micro_batch, 4);
}

TEST(ImportDeepSpeed, ReportsUnknownKeysWithASuggestion) {
  const Imported got = deepspeed(R"({"gradient_cliping": 1, "zero_optimization": {"stge": 1}})");
  ASSERT_NE(find_note(got, "gradient_cliping"), nullptr);
  EXPECT_EQ(find_note(got, "gradient_cliping")->fate, Fate::unknown);
  EXPECT_TRUE(contains(find_note(got, "gradient_cliping")->text, "gradient_clipping"));
  ASSERT_NE(find_note(got, "zero_optimization.stge"), nullptr);
  EXPECT_TRUE(contains(find_note(got, "zero_optimization.stge")->text, "stage"));
}

TEST(ImportDeepSpeed, RefusesContradictingBatchSizes) {
  const std::string sizes =
      R"({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 3,
          "gradient_accumulation_steps": 8})";
  const std::string error = error_of([&] { deepspeed(sizes); });
  for (const char* part : {"100", "3", "8", "contradict"}) EXPECT_TRUE(contains(error, part));
  EXPECT_THROW(deepspeed(kZero2, 16), UsageError);  // 4 · 8 · 16 is not 256
  EXPECT_NO_THROW(deepspeed(kZero2, 8));
  EXPECT_THROW(deepspeed(R"({"zero_optimization": {"stage": 4}})"), UsageError);
  EXPECT_THROW(deepspeed(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"), UsageError);
  EXPECT_THROW(deepspeed(R"({"train_batch_size": 8, "train_batch_size": 9})"), DataError);
  EXPECT_THROW(deepspeed("[]"), DataError);
}

// For any two or three given sizes, the derived ones have the right product.
TEST(ImportDeepSpeed, DerivesMissingBatchSizes) {
  for (int micro : {0, 1, 3}) {
    for (int accumulation : {0, 1, 4}) {
      for (int ranks : {0, 1, 6}) {
        nlohmann::json config;
        if (micro > 0) config["train_micro_batch_size_per_gpu"] = micro;
        if (accumulation > 0) config["gradient_accumulation_steps"] = accumulation;
        config["train_batch_size"] = 72;
        if (micro * accumulation * ranks != 0 && micro * accumulation * ranks != 72) {
          EXPECT_THROW(deepspeed(config.dump(), ranks), UsageError);
          continue;
        }
        const Imported got = deepspeed(config.dump(), ranks);
        const planner::RunConfig& s = got.settings();
        EXPECT_EQ(s.global_batch, 72);
        if (got.has("dp") && got.has("micro-batch") && got.has("grad-accum")) {
          EXPECT_EQ(s.micro_batch * s.grad_accum * s.axes.dp(), 72);
        }
      }
    }
  }
}

TEST(ImportDeepSpeed, ReportsWhatTheUserMustSet) {
  const Imported got = deepspeed(R"({"fp16": {"enabled": true, "initial_scale_power": 16},
      "elasticity": {"enabled": true, "min_gpus": 2, "max_gpus": 8}})");
  ASSERT_NE(find_note(got, "the model"), nullptr);
  EXPECT_TRUE(contains(find_note(got, "the model")->text, "--model"));
  ASSERT_NE(find_note(got, "elasticity.enabled"), nullptr);
  EXPECT_TRUE(contains(find_note(got, "elasticity.enabled")->text, "--max-restarts"));
  EXPECT_NE(find_note(got, "fp16.initial_scale_power"), nullptr) << "without quotes";
  // Control characters are not printed.
  const Imported odd = deepspeed("{\"fp16\": {\"\\u001b[2J\": 1}}");
  for (const ImportNote& note : odd.notes()) EXPECT_FALSE(contains(note.key, "\x1b"));
}

// Each row of the table is found by its path, and paths are unique.
TEST(ImportDeepSpeed, KnowsEveryKeyOfTheTable) {
  std::vector<std::string> seen;
  for (const DeepSpeedKey& key : kDeepSpeedKeys) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), key.path), 0) << key.path;
    seen.emplace_back(key.path);
    nlohmann::json config;
    std::string pointer = "/" + std::string(key.path);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    config[nlohmann::json::json_pointer(pointer)] = "auto";
    const Imported got =
        deepspeed(config.dump());  // a temporary would be destroyed before the loop
    for (const ImportNote& note : got.notes()) {
      EXPECT_NE(note.fate, Fate::unknown) << note.key;
    }
  }
}

TEST(ImportDeepSpeed, ImportsMicsAsReplicas) {
  const std::string mics = R"({"zero_optimization": {"stage": 3, "mics_shard_size": 8}})";
  const Axes axes = deepspeed(mics, 64).settings().axes;
  EXPECT_EQ(axes.dp(), 64);
  EXPECT_EQ(axes.size(Axis::dp_shard), 8);
  EXPECT_EQ(axes.size(Axis::dp_replicate), 8);
  EXPECT_THROW(deepspeed(mics, 12), UsageError);
  const Imported open = deepspeed(mics);
  ASSERT_NE(find_note(open, "zero_optimization.mics_shard_size"), nullptr);
  EXPECT_EQ(find_note(open, "zero_optimization.mics_shard_size")->fate, Fate::open);
  const Imported off =
      deepspeed(R"({"zero_optimization": {"stage": 3, "mics_shard_size": -1}})", 8);
  EXPECT_EQ(off.settings().axes.size(Axis::dp_replicate), 1);
}

TEST(ImportMegatron, ImportsATypicalRun) {
  const Imported got = import_megatron(kGpt, 8);
  const planner::RunConfig& s = got.settings();
  EXPECT_EQ(s.layers, 24);
  EXPECT_EQ(s.hidden, 2048);
  EXPECT_EQ(s.heads, 16);
  EXPECT_EQ(s.vocab, 50257);
  EXPECT_EQ(s.vocab_multiple, 128);
  EXPECT_EQ(s.axes.tp(), 2);
  EXPECT_EQ(s.axes.dp(), 4);
  EXPECT_EQ(s.global_batch, 64);
  EXPECT_EQ(s.micro_batch, 4);
  EXPECT_EQ(s.zero, 1);  // not 2: its gradients are not sharded
  EXPECT_EQ(s.layout.name, "bf16-fp32grad");
  EXPECT_TRUE(s.overlap_grad_reduce);
  EXPECT_FALSE(s.overlap_param_gather);
  EXPECT_EQ(s.recompute, Recompute::selective);
  EXPECT_EQ(s.min_lr_ratio, 3e-5 / 3e-4);
  EXPECT_EQ(s.lr_schedule, LrSchedule::Kind::linear);
  EXPECT_EQ(s.beta2, 0.999);
  EXPECT_EQ(s.dropout, 0.1);
  EXPECT_EQ(find_note(got, "--use-flash-attn")->fate, Fate::not_needed);
  EXPECT_TRUE(got.complete());
}

TEST(ImportMegatron, PlansTheImportedSettings) {
  TESSERA_NEEDS_TOML();
  const planner::RunConfig q = planned(import_megatron(kGpt, 8));
  EXPECT_EQ(q.model.layers, 24);
  EXPECT_EQ(q.model.hidden, 2048);
  EXPECT_EQ(q.axes.tp(), 2);
  EXPECT_EQ(q.dp(), 4);
  EXPECT_EQ(q.grad_accum, 4);  // 64 / (4 · 4)
  EXPECT_EQ(q.zero, 1);
  EXPECT_EQ(q.layout.name, "bf16-fp32grad");
}

TEST(ImportMegatron, ImportsContextParallelism) {
  const planner::RunConfig q =
      import_megatron({"--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4",
                       "--seq-length", "64", "--tensor-model-parallel-size", "2",
                       "--context-parallel-size", "2", "--cp-comm-type", "a2a"},
                      8)
          .settings();
  EXPECT_EQ(q.axes.text(), "dp=2,cp=2,tp=2,pp=1");
  EXPECT_EQ(q.cp_kind, ContextKind::ulysses);
  EXPECT_TRUE(contains(error_of([] {
                         import_megatron({"--cp-comm-type", "allgather"}, 0);
                       }),
                       "must be p2p (--cp-kind ring) or a2a"));
  EXPECT_TRUE(contains(error_of([] {
                         import_megatron({"--context-parallel-size", "3"}, 8);
                       }),
                       "× --context-parallel-size 3"));
}

TEST(ImportMegatron, ImportsModelsByNameAndByFolder) {
  std::vector<std::string> llama = {"--num-layers",
                                    "32",
                                    "--hidden-size",
                                    "4096",
                                    "--num-attention-heads",
                                    "32",
                                    "--ffn-hidden-size",
                                    "11008",
                                    "--swiglu",
                                    "--normalization",
                                    "RMSNorm",
                                    "--disable-bias-linear",
                                    "--position-embedding-type",
                                    "rope",
                                    "--untie-embeddings-and-output-weights",
                                    "--vocab-size",
                                    "32000",
                                    "--max-position-embeddings",
                                    "4096"};
  EXPECT_EQ(import_megatron(llama, 0).settings().model_name, "llama2-7b");
  llama[1] = "3";
  const Imported other = import_megatron(llama, 0);
  ASSERT_TRUE(other.model);
  EXPECT_EQ(other.model->layers, 3);
  EXPECT_TRUE(other.model->swiglu);
}

TEST(ImportMegatron, ReportsUnknownAndMissingFlags) {
  const Imported got = import_megatron(
      {"--tensor-model-paralel-size", "8", "--mtp-num-layers", "1", "--use-flash-attn"}, 0);
  EXPECT_EQ(find_note(got, "--tensor-model-paralel-size")->fate, Fate::unknown);
  EXPECT_TRUE(contains(find_note(got, "--tensor-model-paralel-size")->text,
                       "--tensor-model-parallel-size"));
  EXPECT_EQ(find_note(got, "--mtp-num-layers")->fate, Fate::missing);
  EXPECT_EQ(find_note(got, "--use-flash-attn")->fate, Fate::not_needed);
  EXPECT_THROW(import_megatron({"--num-layers"}, 0), UsageError);
  EXPECT_THROW(import_megatron({"--num-layers", "x"}, 0), UsageError);
  EXPECT_THROW(import_megatron({"train.py"}, 0), UsageError);
  EXPECT_THROW(import_megatron({"--tensor-model-parallel-size", "3"}, 8), UsageError);
  EXPECT_THROW(import_megatron({"--global-batch-size", "10", "--micro-batch-size", "4"}, 8),
               UsageError);
}

TEST(ImportMegatron, ImportsShardingStrategiesAsStages) {
  int stage = 0;
  for (const char* name : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    EXPECT_EQ(import_megatron({"--data-parallel-sharding-strategy", name}, 0).settings().zero,
              stage++);
  }
}

TEST(ImportMegatron, ImportsOptimizerInstancesAsReplicas) {
  const Axes axes =
      import_megatron({"--use-distributed-optimizer", "--num-distributed-optimizer-instances", "4"},
                      16)
          .settings()
          .axes;
  EXPECT_EQ(axes.size(Axis::dp_shard), 4);
  EXPECT_EQ(axes.size(Axis::dp_replicate), 4);
}

// Mutations of real inputs are converted or refused with a tessera::Error, and a converted file
// reads back to the same settings.
class ImportFuzz {
 public:
  std::string mutate(std::string text) {
    const std::vector<std::string> words = {"0",    "-1",   "1e308",    "9223372036854775807",
                                            "null", "true", "\"auto\"", "{}",
                                            "[]",   "\"\"", "\\u0000",  "\xff",
                                            ",",    "{",    "}",        "\"stage\":",
                                            "1.5"};
    for (std::size_t left = 1 + below(5); left > 0; --left) {
      const std::size_t at = below(text.size() + 1);
      const std::size_t length = std::min(text.size() - at, below(12));
      switch (below(4)) {
        case 0: text.erase(at, length); break;
        case 1: text.insert(at, words[below(words.size())]); break;
        case 2: text.replace(at, length, words[below(words.size())]); break;
        default: text.insert(at, text.substr(below(text.size() + 1), below(40)));
      }
    }
    return text;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

 private:
  std::mt19937_64 random_{19};
};

template <typename Read>
void expect_answer(const std::string& input, const Read& read) {
  try {
    const Imported got = read();
    EXPECT_TRUE(nlohmann::json::accept(got.json())) << input;
    if (reads_toml() && got.notes().size() % 7 == 0) {
      EXPECT_EQ(error_of([&] { planned(got, "gpt2-xl"); }).find("is not a setting"),
                std::string::npos)
          << input;
    }
  } catch (const UsageError&) {
  } catch (const DataError&) {
  }
}

TEST(ImportFuzz, ConvertsOrRefusesAnyConfig) {
  ImportFuzz fuzz;
  const int inputs = testing::kSanitized ? 500 : 5000;
  for (int i = 0; i < inputs; ++i) {
    const std::string text = fuzz.mutate(kZero2);
    expect_answer(text, [&] { return deepspeed(text, static_cast<int>(fuzz.below(9))); });
  }
}

TEST(ImportFuzz, ConvertsOrRefusesAnyFlags) {
  ImportFuzz fuzz;
  const int inputs = testing::kSanitized ? 500 : 5000;
  for (int i = 0; i < inputs; ++i) {
    std::vector<std::string> words = i % 2 == 0 ? kGpt : kMixtral;
    for (std::size_t left = 1 + fuzz.below(4); left > 0; --left) {
      const std::size_t at = fuzz.below(words.size());
      switch (fuzz.below(4)) {
        case 0: words.erase(words.begin() + static_cast<std::ptrdiff_t>(at)); break;
        case 1: words[at] = fuzz.mutate(words[at]); break;
        case 2: words[at] = "-1"; break;
        default: words[at] = kMegatronFlags[fuzz.below(std::size(kMegatronFlags))].flag;
      }
    }
    expect_answer(words.front(), [&] { return import_megatron(words, 0); });
  }
}

}  // namespace
}  // namespace tessera::cli
