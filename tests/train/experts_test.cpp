// Mixtures of experts in training: every mesh has the losses and the routing of one process.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tests/combinations.h"
#include "tests/text.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

constexpr int kSteps = 3;

// 5 experts, which no number of ranks here divides but 1.
RunConfig small(const std::string& model = "llama-tiny", std::int64_t experts = 5) {
  RunConfig config = small_run(model, kSteps, 1e-3);
  config.experts = experts;
  config.experts_per_token = 2;
  config.expert_ffn = 48;
  config.balance_loss = 0.01;
  config.z_loss = 0.001;
  return config;
}

void expect_same_losses(const RunConfig& config) {
  const RunConfig one = in_one_process(config);
  static std::map<std::string, Outcomes> known;
  const std::string key =
      str(one.model_name, " ", one.experts, " ", one.shared_expert_ffn, " ", one.dense_layers, " ",
          one.balance_bias_rate, " ", one.router_jitter, " ", one.expert_capacity, " ", one.dropout,
          " ", one.lora_rank, " ", one.optimizer, " ", one.seq, " ", one.experts_per_token, " ",
          one.balance_loss);
  if (!known.contains(key)) known[key] = run_all(one, 1);
  const Outcomes got = run_all(config, 1), &want = known[key];
  expect_same(config, got, want);
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (std::size_t i = 0; i < want.steps.size(); ++i) {
    EXPECT_NEAR(got.steps[i].loss, want.steps[i].loss, 1e-6 * want.steps[i].loss)
        << "step " << i << ": " << words(config) << ", ep " << config.ep();
    ASSERT_EQ(got.steps[i].experts.size(), want.steps[i].experts.size()) << words(config);
    for (std::size_t e = 0; e < want.steps[i].experts.size(); ++e) {
      const ExpertLoad &mine = got.steps[i].experts[e], &theirs = want.steps[i].experts[e];
      EXPECT_EQ(mine.layer, theirs.layer) << words(config);
      EXPECT_EQ(mine.tokens, theirs.tokens)
          << "step " << i << ", " << mine.layer << ", " << words(config) << ", ep " << config.ep();
      EXPECT_NEAR(mine.dropped, theirs.dropped, 1e-12) << words(config);
      EXPECT_NEAR(mine.entropy, theirs.entropy, 1e-5) << words(config);
      EXPECT_NEAR(mine.balance, theirs.balance, 1e-5 * theirs.balance) << words(config);
      EXPECT_NEAR(mine.z, theirs.z, 1e-5 * theirs.z) << words(config);
    }
  }
}

TEST(Experts, EveryMeshAndStageMatchesOneProcess) {
  const auto allowed = [](int dp, int tp, int pp, int cp, int ep, int, const char*, bool sequence) {
    const int ranks = dp * tp * pp * cp;
    return ranks > 1 && ranks <= 8 && dp * cp % ep == 0 && (tp > 1 || !sequence);
  };
  for (const auto& [dp, tp, pp, cp, ep, stage, recompute, sequence] :
       combinations_where(allowed, std::vector{1, 2, 4}, std::vector{1, 2}, std::vector{1, 2},
                          std::vector{1, 2}, std::vector{1, 2, 4}, std::vector{0, 1, 2, 3},
                          std::vector{"none", "selective", "full"}, std::vector{false, true})) {
    RunConfig config =
        on_cut(small(), {.dp = dp, .tp = tp, .pp = pp, .cp = cp, .ep = ep}, pp > 1 ? 2 : 1);
    config.zero = stage;
    config.sequence_parallel = sequence;
    config.set("recompute", recompute);
    expect_same_losses(config);
  }
}

TEST(Experts, ReplicasOfShardsMatchOneProcess) {
  for (int stage = 1; stage < 4; ++stage) {
    RunConfig config = on_cut(small(), {.dp = 8, .ep = 2}, 1);
    config.axes.set_given(Axis::dp_replicate, 2);
    config.zero = stage;
    expect_same_losses(config);
  }
}

TEST(Experts, OtherModelsAndSettingsMatchOneProcess) {
  const auto check = [](auto change, const char* model = "llama-tiny") {
    RunConfig config = small(model, 4);
    change(config);
    for (const Cut& mesh : {Cut{.dp = 2, .ep = 2}, Cut{.dp = 2, .tp = 2, .ep = 2}}) {
      RunConfig cut = on_cut(config, mesh, 2);
      cut.zero = 2;
      expect_same_losses(cut);
    }
  };
  check([](RunConfig&) {}, "gpt-tiny");  // GELU and biases
  check([](RunConfig& config) { config.shared_expert_ffn = 32, config.dense_layers = 1; });
  check([](RunConfig& config) {
    config.router_scores = RouterScores::sigmoid;
    config.balance_bias_rate = 0.01;
    config.balance_loss = 0;
  });
  check([](RunConfig& config) { config.router_jitter = 0.1; });
  check([](RunConfig& config) { config.expert_capacity = 1; });
  check([](RunConfig& config) { config.experts_per_token = 1; });
  check([](RunConfig& config) { config.dropout = 0.1; }, "gpt-tiny");
  check([](RunConfig& config) { config.lora_rank = 4, config.lora_targets = "qkv"; });
  check([](RunConfig& config) { config.optimizer = OptimizerChoice::lion; });
}

TEST(Experts, MuonTrainsEachExpertAsAMatrix) {
  RunConfig config = on_cut(small(), {.dp = 4, .ep = 2}, 1);
  config.set("optimizer", "muon");
  for (int stage = 0; stage < 4; ++stage) {
    config.zero = stage;
    expect_same_losses(config);
  }
}

TEST(Experts, SelectionBiasBalancesTheLoads) {
  RunConfig config = on_cut(small("llama-tiny", 8), {.dp = 2, .ep = 2}, 1);
  config.steps = 60;
  config.balance_loss = 0;
  config.lr = 1e-9;  // only the bias moves
  // Tokens of the busiest expert over the mean, in the last 20 steps together.
  const auto imbalance = [&](double rate) {
    config.balance_bias_rate = rate;
    const std::vector<StepMetrics> steps = run_all(config).steps;
    ExpertLoad sum = steps.back().experts.front();
    for (std::size_t i = 40; i + 1 < steps.size(); ++i) {
      for (std::size_t e = 0; e < sum.tokens.size(); ++e) {
        sum.tokens[e] += steps[i].experts.front().tokens[e];
      }
    }
    return sum.imbalance();
  };
  EXPECT_LT(imbalance(0.001), 0.8 * imbalance(0));
}

// Every token passes every expert, so that all ranks and experts have equally many rows.
TEST(Experts, MemoryAndTrafficMatchThePlanWithEvenLoads) {
  const auto check = [](const Cut& mesh, int stage, const char* recompute, auto change,
                        const char* model = "llama-tiny") {
    RunConfig config = on_cut(small(model, 4), mesh, 1);
    config.experts_per_token = 4;
    config.expert_ffn = 96;
    config.seq = 64;
    config.steps = 2;
    config.zero = stage;
    config.set("recompute", recompute);
    change(config);
    const std::vector<Summary> ranks = run_all(config).summaries;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const Outcome &predicted = ranks[r].predicted, &measured = ranks[r].measured;
      const std::string who = str("rank ", r, ": ", words(config), ", ep ", config.ep());
      EXPECT_EQ((*predicted.sent)[Axis::ep], (*measured.sent)[Axis::ep]) << who;
      const auto near = [&](const char* row, double share) {
        const auto planned = static_cast<double>(predicted.memory.at(row));
        EXPECT_NEAR(static_cast<double>(measured.memory.at(row)), planned, share * planned)
            << row << ", " << who;
      };
      near("activations", 0.01);
      near("buffers", 0.03);
      near("peak", 0.05);
    }
  };
  const auto same = [](RunConfig&) {};
  int turn = 0;
  for (const Cut& mesh :
       {Cut{}, Cut{.dp = 2, .ep = 2}, Cut{.dp = 4, .ep = 4}, Cut{.dp = 4, .ep = 2},
        Cut{.cp = 2, .ep = 2}, Cut{.dp = 2, .tp = 2, .ep = 2}}) {
    for (int stage = 0; stage < 4; ++stage) {
      check(mesh, stage, std::vector{"none", "selective", "full"}[turn++ % 3], same);
    }
  }
  check({.dp = 2, .ep = 2}, 2, "none", same, "gpt-tiny");
  check({.dp = 2, .ep = 2}, 0, "none", [](RunConfig& config) { config.shared_expert_ffn = 32; });
  check({.dp = 2, .ep = 2}, 0, "none", [](RunConfig& config) { config.dense_layers = 2; });
}

TEST(Experts, AMeshThatDoesNotFitIsRefused) {
  const auto refusal = [](RunConfig config) {
    std::string message;
    over(static_cast<int>(config.axes.world()), [&](const comm::Group& world) {
      const std::string error = error_of([&] { const Trainer trainer(config, world); });
      if (world.rank() == 0) message = error;
    });
    return message;
  };
  RunConfig dense = on_cut(small_run("llama-tiny", 1, 1e-3), {.dp = 2, .ep = 2}, 1);
  EXPECT_TRUE(contains(refusal(dense), "no experts")) << refusal(dense);
  const RunConfig few = on_cut(small("llama-tiny", 2), {.dp = 4, .ep = 4}, 1);
  EXPECT_TRUE(contains(refusal(few), "2 experts")) << refusal(few);
}

}  // namespace
}  // namespace tessera::train
