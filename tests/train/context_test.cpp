// Context parallelism in training: every mesh has the losses of one process.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/train/from_config.h"
#include "tests/combinations.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

constexpr int kSteps = 3;

// An odd length, which every mesh pads.
RunConfig small(const std::string& model, std::int64_t seq = 29) {
  RunConfig config = small_run(model, kSteps, 1e-3);
  config.seq = seq;
  config.heads = 8;
  config.kv_heads = model.starts_with("gpt") ? 8 : 2;
  return config;
}

// Runs a configuration on its mesh and in one process. Expects equal losses, within the rounding of
// fp32 sums in another order, planned traffic and planned state.
void expect_same_losses(const RunConfig& config) {
  const RunConfig one = in_one_process(config);
  static std::map<std::string, Outcomes> known;
  const std::string key = str(one.model_name, " ", one.seq, " ", one.dropout, " ", one.lora_rank,
                              " ", one.documents, " ", one.data, " ", one.optimizer);
  if (!known.contains(key)) known[key] = run_all(one, 1);
  const Outcomes got = run_all(config, 1), &want = known[key];
  expect_same(config, got, want);
  for (std::size_t i = 0; i < want.steps.size(); ++i) {
    const double allowed = 1e-6 * want.steps[i].loss;
    EXPECT_NEAR(got.steps[i].loss, want.steps[i].loss, allowed)
        << "step " << i << ": " << words(config);
  }
}

const std::vector<ContextKind> kKinds = {ContextKind::ring, ContextKind::ulysses};
const std::vector<const char*> kRecompute = {"none", "selective", "full"};

TEST(Context, EveryMeshAndStageMatchesOneProcess) {
  const auto allowed = [](const char*, int dp, int tp, int pp, int cp, ContextKind kind, int,
                          const char*, bool sequence) {
    // 3 ranks do not divide the heads.
    return dp * tp * pp * cp <= 8 && !(kind == ContextKind::ulysses && cp == 3) &&
           (tp > 1 || !sequence);
  };
  for (const auto& [model, dp, tp, pp, cp, kind, stage, recompute, sequence] :
       combinations_where(allowed, std::vector{"gpt-tiny", "llama-tiny"}, std::vector{1, 2},
                          std::vector{1, 2}, std::vector{1, 2}, std::vector{2, 3, 4, 8}, kKinds,
                          std::vector{0, 1, 2, 3}, kRecompute, std::vector{false, true})) {
    RunConfig config =
        on_cut(small(model), {.dp = dp, .tp = tp, .pp = pp, .cp = cp}, pp > 1 ? 4 : 1);
    config.zero = stage;
    config.cp_kind = kind;
    config.sequence_parallel = sequence;
    config.set("recompute", recompute);
    expect_same_losses(config);
  }
}

TEST(Context, ReplicasOfShardsMatchOneProcess) {
  for (int stage = 1; stage < 4; ++stage) {
    RunConfig config = on_cut(small("gpt-tiny"), {.dp = 4, .cp = 2}, 1);
    config.axes.set_given(Axis::dp_replicate, 2);
    config.zero = stage;
    expect_same_losses(config);
  }
}

// Documents of a text in rows of their own attention, windows, accumulation, and other optimizers
// and schedules.
TEST(Context, OtherSettingsMatchOneProcess) {
  const TemporaryFolder folder;
  std::ofstream text(folder / "text.txt");
  for (int i = 0; i < 400; ++i) text << "line " << i * i % 97 << (i % 7 == 0 ? "\n\n" : " of it ");
  text.close();
  const auto with = [&](const Cut& mesh, int accumulation, auto&&... flags) {
    for (const ContextKind kind : kKinds) {
      RunConfig config = on_cut(small("llama-tiny"), mesh, accumulation);
      config.cp_kind = kind;
      const auto set = [&](const char* key, const char* value) { config.set(key, value); };
      (set(flags.first, flags.second), ...);
      expect_same_losses(config);
    }
  };
  using Flag = std::pair<const char*, const char*>;
  const std::string path = folder / "text.txt";
  with({.cp = 2}, 2, Flag{"vocab", "256"}, Flag{"data", path.c_str()},
       Flag{"documents", "separate"});
  with({.cp = 2}, 1, Flag{"optimizer", "muon"}, Flag{"zero", "2"});
  with({.pp = 2, .cp = 2}, 4, Flag{"schedule", "interleaved"}, Flag{"chunks", "2"});
}

// A window that is shorter than a chunk of a rank, and one that reaches over several.
TEST(Context, SlidingWindowsMatchOneProcess) {
  for (const int window : {3, 11}) {
    const TemporaryFolder folder;
    std::ofstream(folder / "config.json")
        << R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral",
"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
"num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 4096, "rope_theta": 10000.0,
"rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "float32",
"sliding_window": )"
        << window << "}";
    for (const Cut& mesh : {Cut{.cp = 2}, Cut{.cp = 4}, Cut{.tp = 2, .cp = 2}}) {
      for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
        RunConfig config = on_cut(small(folder.path), mesh, 1);
        config.cp_kind = kind;
        config.zero = mesh.cp == 4 ? 3 : 1;
        expect_same_losses(config);
      }
    }
  }
}

// Gemma 2: capped scores, with and without a window.
TEST(Context, CappedScoresMatchOneProcess) {
  const TemporaryFolder folder;
  std::ofstream(folder / "config.json")
      << R"({"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 32,
"intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
"head_dim": 6, "vocab_size": 64, "max_position_embeddings": 4096, "rope_theta": 10000.0,
"rms_norm_eps": 1e-06, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true,
"torch_dtype": "float32", "sliding_window": 11, "query_pre_attn_scalar": 4,
"attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0})";
  for (const Cut& mesh : {Cut{.cp = 2}, Cut{.cp = 3}, Cut{.tp = 2, .cp = 2}}) {
    for (const ContextKind kind : kKinds) {
      if (kind == ContextKind::ulysses && mesh.cp == 3) continue;
      RunConfig config = on_cut(small(folder.path), mesh, 1);
      config.cp_kind = kind;
      config.zero = mesh.cp == 3 ? 3 : 1;
      expect_same_losses(config);
    }
  }
  for (const char* recompute : kRecompute) {
    RunConfig config = on_cut(small(folder.path, 32), {.cp = 2}, 1);
    config.cp_kind = ContextKind::ring;
    config.set("recompute", recompute);
    for (const Summary& rank : run_all(config).summaries) {
      EXPECT_EQ(rank.measured.memory.at("activations"), rank.predicted.memory.at("activations"))
          << words(config);
    }
  }
}

// 16-bit parameters, and gradients that are sent in 16 bits: losses within their rounding, and the
// planned traffic.
TEST(Context, SixteenBitsMatchOneProcess) {
  const auto near = [](RunConfig config) {
    RunConfig one = config;
    one.axes = Axes();
    one.zero = 0;
    one.micro_batch = kBatch;
    one.grad_compression = GradCompression::none;
    const Outcomes got = run_all(config), want = run_all(one);
    ASSERT_EQ(got.steps.size(), want.steps.size());
    for (std::size_t i = 0; i < want.steps.size(); ++i) {
      EXPECT_NEAR(got.steps[i].loss, want.steps[i].loss, 3e-3 * want.steps[i].loss)
          << "step " << i << ": " << words(config);
    }
    for (const Summary& rank : got.summaries) {
      for (const Axis axis : kAllAxes) {
        EXPECT_EQ((*rank.predicted.sent)[axis], (*rank.measured.sent)[axis])
            << axis_name(axis) << ", " << words(config);
      }
    }
  };
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const ContextKind kind : {ContextKind::ring, ContextKind::ulysses}) {
      for (const int stage : {1, 3}) {
        RunConfig config = on_cut(small(model), {.dp = 2, .cp = 2}, 1);
        config.cp_kind = kind;
        config.zero = stage;
        config.layout = parse_state_layout("bf16");
        near(config);
        config.layout = parse_state_layout("fp32");
        for (const char* compression : {"bf16", "fp16"}) {
          config.set("grad-compression", compression);
          near(config);
        }
      }
    }
  }
}

TEST(Context, DropoutIsEqualOnEveryMesh) {
  for (const Cut& mesh : {Cut{.cp = 2}, Cut{.tp = 2, .cp = 2}, Cut{.cp = 4}}) {
    for (const ContextKind kind : kKinds) {
      RunConfig config = on_cut(small("gpt-tiny"), mesh, 1);
      config.dropout = config.attention_dropout = 0.1;
      config.cp_kind = kind;
      config.sequence_parallel = mesh.tp > 1;
      expect_same_losses(config);
    }
  }
}

TEST(Context, EvaluationEqualsThatOfOneProcess) {
  const TemporaryFolder folder;
  std::ofstream text(folder / "text.txt");
  for (int i = 0; i < 211; ++i) text << "line " << i * i % 97 << " of a text\n";
  text.close();
  const auto loss = [&](const Cut& mesh, ContextKind kind) {
    RunConfig config = on_cut(small("llama-tiny"), mesh, 1);
    config.cp_kind = kind;
    config.vocab = 256;
    config.data = config.val_data = folder / "text.txt";
    double result = 0;
    on_ranks(config, [&](Trainer& trainer, int rank) {
      const double evaluated = trainer.evaluate().loss();
      if (rank == 0) result = evaluated;
    });
    return result;
  };
  const double alone = loss({}, ContextKind::ring);
  for (const Cut& mesh : {Cut{.cp = 2}, Cut{.dp = 2, .cp = 2}, Cut{.pp = 2, .cp = 2}}) {
    for (const ContextKind kind : kKinds) {
      EXPECT_NEAR(loss(mesh, kind), alone, 1e-6 * alone) << mesh.dp << " " << mesh.pp;
    }
  }
}

TEST(Context, AdaptersMatchOneProcess) {
  for (const Cut& mesh : {Cut{.cp = 2}, Cut{.tp = 2, .cp = 2}}) {
    RunConfig config = on_cut(small("llama-tiny"), mesh, 1);
    config.lora_rank = 4;
    config.lora_dropout = 0.1;
    expect_same_losses(config);
  }
}

TEST(Context, KeptActivationsEqualThePlan) {
  for (const auto& [model, kind, recompute, ranks] : combinations(
           std::vector{"gpt-tiny", "llama-tiny"}, kKinds, kRecompute, std::vector{1, 2, 4})) {
    RunConfig config = on_cut(small(model, 64), {.cp = ranks}, 1);
    config.cp_kind = kind;
    config.set("recompute", recompute);
    config.steps = 2;
    for (const Summary& rank : run_all(config).summaries) {
      const auto planned = [&](const char* what) {
        return static_cast<double>(rank.predicted.memory.at(what));
      };
      EXPECT_EQ(rank.measured.memory.at("activations"), rank.predicted.memory.at("activations"))
          << words(config);
      EXPECT_NEAR(static_cast<double>(rank.measured.memory.at("peak")), planned("peak"),
                  0.04 * planned("peak"))
          << words(config);
    }
  }
}

// Rows for which the blocks of attention are a large part of the memory of small layers.
TEST(Context, PeaksOfLongRowsAreThoseOfThePlan) {
  for (const auto& [model, kind, recompute, ranks] : combinations(
           std::vector{"gpt-tiny", "llama-tiny"}, kKinds, kRecompute, std::vector{1, 2, 4})) {
    RunConfig config = on_cut(small(model, 4096), {.cp = ranks}, 1);
    config.cp_kind = kind;
    config.set("recompute", recompute);
    config.layers = 2;
    if (std::string(model) == "gpt-tiny") config.positions = 4096;
    config.global_batch = config.micro_batch = 1;
    config.steps = 2;
    for (const Summary& rank : run_all(config).summaries) {
      const double planned = static_cast<double>(rank.predicted.memory.at("peak")),
                   measured = static_cast<double>(rank.measured.memory.at("peak"));
      EXPECT_NEAR(measured, planned, 0.04 * planned)
          << words(config) << ": " << 100 * (measured / planned - 1) << "%";
    }
  }
}

TEST(Context, RefusesKindsThatCannotRun) {
  const auto refusal = [](ContextKind kind, int ranks, const std::string& model) {
    RunConfig config = on_cut(small(model), {.cp = ranks}, 1);
    config.cp_kind = kind;
    std::string message;
    over(ranks, [&](const comm::Group& world) {
      const std::string error = error_of([&] { const Trainer trainer(config, world); });
      if (world.rank() == 0) message = error;
    });
    return message;
  };
  EXPECT_TRUE(contains(refusal(ContextKind::ulysses, 3, "gpt-tiny"), "--cp-kind ring"));
  EXPECT_EQ(refusal(ContextKind::automatic, 3, "gpt-tiny"), "");
}

// Checked before a GPU is used.
TEST(Context, RefusesSettingsThatARingOnAGpuDoesNotSupport) {
  RunConfig config = on_cut(small("gpt-tiny"), {.cp = 2}, 1);
  const auto refusal = [&] { return error_of([&] { check_mesh(config, resolve(config, 2)); }); };
  config.cp_kind = ContextKind::ring;
  config.attention_dropout = 0.1;
  EXPECT_EQ(refusal(), "");
  config.device = Device::cuda;
  EXPECT_TRUE(contains(refusal(),
                       "ring on a GPU does not support --attention-dropout 0.1. Use "
                       "--cp-kind ulysses, --attention-dropout 0 or --device cpu"));
  config.cp_kind = ContextKind::ulysses;
  EXPECT_EQ(refusal(), "");
}

}  // namespace
}  // namespace tessera::train
