// tessera import megatron: flags of mixtures of experts.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tests/cli/imported.h"
#include "tests/text.h"
#include "tests/toml.h"

namespace tessera::cli {
namespace {

std::vector<std::string> with_expert_flags(std::vector<std::string> words,
                                           const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(ImportExperts, ReadsSettingsOfMegatron) {
  const Imported mixtral = import_megatron(kMixtral, 8);
  EXPECT_EQ(mixtral.settings().model_name, "mixtral-8x7b");
  EXPECT_EQ(mixtral.settings().axes.size(Axis::ep), 4);
  EXPECT_EQ(mixtral.settings().balance_loss, 0.01);
  EXPECT_EQ(mixtral.settings().experts, 0);  // those of the model
  EXPECT_EQ(find_note(mixtral, "--moe-router-load-balancing-type")->fate, Fate::changed);
  EXPECT_TRUE(mixtral.complete()) << mixtral.report();

  const Imported gpt =
      import_megatron(with_expert_flags(kGpt, {"--num-experts",
                                               "16",
                                               "--moe-ffn-hidden-size",
                                               "1024",
                                               "--moe-shared-expert-intermediate-size",
                                               "512",
                                               "--moe-layer-freq",
                                               "([0]*2 + [1]*22)",
                                               "--moe-router-load-balancing-type",
                                               "seq_aux_loss",
                                               "--moe-aux-loss-coeff",
                                               "0.02",
                                               "--moe-z-loss-coeff",
                                               "1e-3",
                                               "--moe-input-jitter-eps",
                                               "0.1",
                                               "--moe-expert-capacity-factor",
                                               "1.25",
                                               "--moe-token-drop-policy",
                                               "position",
                                               "--expert-model-parallel-size",
                                               "2",
                                               "--expert-tensor-parallel-size",
                                               "2"}),
                      8);
  const planner::RunConfig& s = gpt.settings();
  EXPECT_EQ(s.layers, 24);
  EXPECT_EQ(s.experts, 16);
  EXPECT_EQ(s.experts_per_token, 2);  // Megatron's default
  EXPECT_EQ(s.expert_ffn, 1024);
  EXPECT_EQ(s.shared_expert_ffn, 512);
  EXPECT_EQ(s.dense_layers, 2);
  EXPECT_EQ(s.balance_loss, 0.02);
  EXPECT_EQ(s.z_loss, 1e-3);
  EXPECT_EQ(s.router_jitter, 0.1);
  EXPECT_EQ(s.expert_capacity, 1.25);
  EXPECT_EQ(s.axes.size(Axis::ep), 2);
  EXPECT_EQ(find_note(gpt, "--moe-router-load-balancing-type"), nullptr);
  EXPECT_EQ(find_note(gpt, "--moe-token-drop-policy"), nullptr);
  EXPECT_EQ(find_note(gpt, "--moe-expert-capacity-factor")->fate, Fate::changed);
  EXPECT_TRUE(gpt.complete()) << gpt.report();
}

TEST(ImportExperts, PlansImportedExperts) {
  TESSERA_NEEDS_TOML();
  const planner::RunConfig q = planned(import_megatron(
      with_expert_flags(kGpt, {"--num-experts", "8", "--expert-model-parallel-size", "4"}), 8));
  EXPECT_EQ(q.model.experts.count, 8);
  EXPECT_EQ(q.model.experts.width, 4 * 2048);
  EXPECT_EQ(q.model.experts.balance_loss, 0);  // Megatron's default, unlike Tessera's
  EXPECT_EQ(q.ep(), 4);
  const planner::RunConfig named = planned(import_megatron(kMixtral, 8));
  EXPECT_EQ(named.model.experts.count, 8);
  EXPECT_EQ(named.model.experts.width, 14336);
}

// Models that settings do not describe become a config.json.
TEST(ImportExperts, ImportsExpertsWithScoresAsTheirWeights) {
  std::vector<std::string> words = with_expert_flags(
      kMixtral, {"--qk-layernorm", "--moe-router-pre-softmax", "--moe-ffn-hidden-size", "768"});
  const Imported qwen = import_megatron(words, 0);
  ASSERT_TRUE(qwen.model);
  EXPECT_TRUE(qwen.model->qk_norm);
  EXPECT_EQ(qwen.model->experts,
            (Experts{.count = 8, .per_token = 2, .width = 768, .normalized = false}));
  EXPECT_EQ(qwen.settings().experts, 0);
  words = with_expert_flags(
      kMixtral,
      {"--qk-layernorm", "--moe-router-score-function", "sigmoid",
       "--moe-router-enable-expert-bias", "--moe-router-topk-scaling-factor", "2.5",
       "--moe-shared-expert-intermediate-size", "28672", "--moe-layer-freq", "[0]*1+[1]*31"});
  const Imported dots = import_megatron(words, 0);
  ASSERT_TRUE(dots.model);
  Experts wanted{.count = 8, .per_token = 2, .width = 14336, .shared_width = 28672};
  wanted.scores = RouterScores::sigmoid;
  wanted.scale = 2.5;
  wanted.selection_bias = true;
  wanted.dense_layers = 1;
  EXPECT_EQ(dots.model->experts, wanted);
  EXPECT_EQ(dots.settings().balance_bias_rate, 0.001);  // Megatron's default
  // Without the scale, settings describe it.
  std::erase(words, "--moe-router-topk-scaling-factor");
  std::erase(words, "2.5");
  const Imported plain = import_megatron(words, 0);
  EXPECT_EQ(plain.settings().router_scores, RouterScores::sigmoid);
  EXPECT_EQ(plain.settings().dense_layers, 1);
  EXPECT_FALSE(plain.model && plain.model->experts.any());
}

TEST(ImportExperts, ReportsExpertsThatTesseraDoesNotHave) {
  const auto import = [](const std::vector<std::string>& more, int ranks = 8) {
    return import_megatron(with_expert_flags(kMixtral, more), ranks);
  };
  const auto missing = [&](const std::vector<std::string>& more) {
    const Imported got = import(more);
    const ImportNote* const note = find_note(got, more.front());
    EXPECT_TRUE(note != nullptr && note->fate == Fate::missing) << more.front();
  };
  missing({"--moe-router-num-groups", "8"});
  missing({"--moe-router-group-topk", "4"});
  missing({"--moe-layer-freq", "2"});
  missing({"--moe-layer-freq", "[1,0]*16"});
  missing({"--moe-router-load-balancing-type", "sinkhorn"});
  missing({"--moe-router-score-function", "sqrtsoftplus"});
  missing({"--moe-shared-expert-gate"});
  missing({"--moe-shared-expert-overlap"});
  missing({"--moe-use-upcycling"});
  missing({"--expert-tensor-parallel-size", "2"});
  EXPECT_EQ(import({"--moe-router-load-balancing-type", "none"}).settings().balance_loss, 0);
  EXPECT_EQ(
      find_note(import({"--moe-expert-capacity-factor", "1"}), "--moe-token-drop-policy")->fate,
      Fate::changed);
  const auto refused = [&](const std::vector<std::string>& more, const char* part) {
    const std::string problem = error_of([&] { import(more); });
    EXPECT_TRUE(contains(problem, part)) << more.front() << ": " << problem;
  };
  refused({"--moe-router-topk", "9"}, "must be at most --num-experts 8");
  refused({"--moe-router-topk", "0"}, "--moe-router-topk: got 0");
  refused({"--num-experts", "1"}, "--moe-router-topk: got 2");
  refused({"--num-experts", "-4"}, "--num-experts: got -4");
  refused({"--expert-model-parallel-size", "3"}, "must divide the 8 ranks");
  refused({"--moe-layer-freq", "[0]*3+[1]*3"}, "a list of 6 layers");
  refused({"--moe-aux-loss-coeff", "-1"}, "--moe-aux-loss-coeff");
  for (const char* text : {"x", "[", "[0", "[2]", "[0]*", "[0]*-1", "[0]*999999999999", "[0,,1]",
                           "[0]*2+", "[0]*2[1]", "([0]*2", "[0]*100000+[1]*100000"}) {
    refused({"--moe-layer-freq", text}, "--moe-layer-freq");
  }
}

}  // namespace
}  // namespace tessera::cli
