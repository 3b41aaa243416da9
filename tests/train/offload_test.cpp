// Runs with small moments and with optimizer state in files: memory, checkpoints, refusals.

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/train/memory_check.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

using Given = std::vector<std::pair<std::string, std::string>>;

RunConfig run_with(const Given& given) {
  RunConfig config = small_run("gpt-tiny", 4, 0.01);
  config.axes.set_dp(2);
  config.micro_batch = kBatch / 2;
  for (const auto& [name, text] : given) set(config, field(name), text);
  return config;
}

std::vector<double> losses_of(const RunConfig& config) {
  std::vector<double> losses;
  for (const StepMetrics& step : run_all(config).steps) losses.push_back(step.loss);
  return losses;
}

Given offloaded(Given given, const TemporaryFolder& folder) {
  given.emplace_back("offload", "optimizer");
  given.emplace_back("offload-dir", folder.path);
  return given;
}

// The state of a rank is two to three times the limit.
TEST(OffloadTrain, ModelAboveTheMemoryLimitHasTheLossesOfTheUnlimitedRun) {
  const TemporaryFolder folder;
  for (const auto& [stage, times] :
       {std::pair("0", 3.0), std::pair("1", 2.0), std::pair("2", 2.0), std::pair("3", 2.5)}) {
    const Given model = {{"layout", "bf16"}, {"zero", stage},      {"layers", "16"},
                         {"hidden", "384"},  {"micro-batch", "1"}, {"global-batch", "2"},
                         {"seq", "8"},       {"steps", "3"},       {"recompute", "full"}};
    const RunConfig unlimited = run_with(model);
    const auto state = static_cast<double>(plan(unlimited, resolve(unlimited, 2)).state());
    RunConfig in_memory = unlimited, on_disk = run_with(offloaded(model, folder));
    in_memory.memory_limit = on_disk.memory_limit = static_cast<std::int64_t>(state / times);
    EXPECT_THROW(run_all(in_memory), Error) << stage;
    EXPECT_EQ(losses_of(on_disk), losses_of(unlimited)) << stage;
  }
}

TEST(OffloadTrain, MemoryMatchesThePlan) {
  const TemporaryFolder folder;
  for (const char* state : {"fp32", "bf16", "int8"}) {
    for (const char* stage : {"0", "1", "2", "3"}) {
      for (const bool disk : {false, true}) {
        Given given = {
            {"optimizer-state", state}, {"zero", stage}, {"hidden", "128"}, {"layout", "fp32"}};
        if (disk) given = offloaded(given, folder);
        const Outcomes run = run_all(run_with(given));
        for (const Summary& summary : run.summaries) {
          for (const char* row : {"params", "grads", "optimizer", "buffers", "peak"}) {
            const auto want = static_cast<double>(summary.predicted.memory.at(row));
            const auto got = static_cast<double>(summary.measured.memory.at(row));
            const double share =
                row == std::string("peak") || row == std::string("buffers") ? 0.03 : 0.01;
            EXPECT_NEAR(got, want, share * want) << state << stage << disk << " " << row;
          }
          if (disk) {
            EXPECT_EQ(summary.measured.memory.at("optimizer"), 0);
          }
        }
      }
    }
  }
}

TEST(OffloadTrain, StagesMeshesAndAdaptersTrainWithSmallMoments) {
  for (const char* state : {"bf16", "int8"}) {
    for (const Given& each :
         {Given{}, Given{{"lora-rank", "4"}}, Given{{"tp", "2"}}, Given{{"pp", "2"}}}) {
      std::vector<double> first;
      for (const char* stage : {"0", "1", "2", "3"}) {
        Given given = each;
        given.emplace_back("optimizer-state", state);
        given.emplace_back("zero", stage);
        given.emplace_back("grad-reduce", "last");
        if (each == Given{{"pp", "2"}} && stage == std::string("3")) continue;
        const std::vector<double> losses = losses_of(run_with(given));
        if (first.empty()) first = losses;
        EXPECT_EQ(losses, first) << state << " stage " << stage;
      }
      EXPECT_TRUE(std::isfinite(first.back()));
    }
  }
}

TEST(OffloadTrain, ResumedRunIsBitwiseEqual) {
  for (const char* state : {"fp32", "bf16", "int8"}) {
    for (const char* stage : {"0", "3"}) {
      const TemporaryFolder saves, state_folder;
      const Given given = {{"optimizer-state", state}, {"zero", stage}, {"layout", "bf16"}};
      const std::string whole = train_to(run_with(given), 4).hash;
      // Saved from files, resumed in memory.
      RunConfig before = run_with(offloaded(given, state_folder)), after = run_with(given);
      before.save = after.save = saves.path;
      after.resume = "auto";
      train_to(before, 2);
      EXPECT_EQ(train_to(after, 4).hash, whole) << state << " stage " << stage;
      // On another mesh, into files.
      RunConfig other = run_with(offloaded(given, state_folder));
      other.axes = {{Axis::dp_shard, 1}, {Axis::tp, 2}};
      other.micro_batch = kBatch;
      other.resume = saves / "step-00000002";
      const std::vector<double> losses = train_to(other, 4).losses;
      const std::vector<double> wanted = losses_of(run_with(given));
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_NEAR(losses[i], wanted[i + 2], 0.02 * wanted[i + 2]) << state << " stage " << stage;
      }
    }
  }
}

TEST(OffloadTrain, AnotherFormatIsConvertedOnRequestOnly) {
  for (const char* from : {"fp32", "bf16", "int8"}) {
    for (const char* to : {"fp32", "bf16", "int8"}) {
      if (from == std::string(to)) continue;
      const TemporaryFolder saves;
      RunConfig before = run_with({{"optimizer-state", from}});
      RunConfig after = run_with({{"optimizer-state", to}});
      before.save = saves.path;
      after.resume = saves.path;
      train_to(before, 2);
      const std::string refused = error_of([&] { train_to(after, 4); });
      EXPECT_TRUE(contains(
          refused, str("the moments were saved as ", from, ", but this run stores them as ", to)))
          << refused;
      after.convert_optimizer_state = true;
      const std::vector<double> losses = train_to(after, 4).losses, wanted = losses_of(before);
      for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(losses[i], wanted[i + 2], 0.02 * wanted[i]);
    }
  }
}

TEST(OffloadTrain, UnsupportedCombinationsAreErrors) {
  const auto refusal = [](const Given& given) {
    return error_of([&] { resolve(run_with(given), 2); });
  };
  EXPECT_TRUE(contains(refusal({{"optimizer-state", "int8"}, {"optimizer", "lion"}}),
                       "--optimizer-state: got int8 with --optimizer lion"));
  EXPECT_TRUE(contains(refusal({{"optimizer-state", "bf16"}, {"device", "cuda"}}),
                       "--optimizer-state: got bf16 with --device cuda"));
  EXPECT_TRUE(contains(refusal({{"offload", "optimizer"}}), "--offload-dir"));
  EXPECT_TRUE(contains(refusal({{"offload-dir", "/tmp"}}), "without --offload"));
  EXPECT_TRUE(contains(refusal({{"offload", "params"}, {"offload-dir", "/tmp"}}),
                       "--offload: got \"params\", must be optimizer"));
  const Given files = {{"offload", "optimizer"}, {"offload-dir", "/tmp"}};
  Given muon = files, cuda = files;
  muon.emplace_back("optimizer", "muon");
  cuda.emplace_back("device", "cuda");
  EXPECT_TRUE(contains(refusal(muon), "--offload: got optimizer with --optimizer muon"));
  EXPECT_TRUE(contains(refusal(cuda), "--offload: got optimizer with --device cuda"));
}

TEST(OffloadTrain, FolderIsCheckedBeforeTheRun) {
  const auto refusal = [](const RunConfig& config) {
    return error_of([&] { check_offload_folder(config, resolve(config, 2), 2); });
  };
  const TemporaryFolder folder;
  EXPECT_EQ(refusal(run_with(offloaded({}, folder))), "");
  RunConfig missing = run_with({{"offload", "optimizer"}, {"offload-dir", "/nonexistent"}});
  EXPECT_TRUE(contains(refusal(missing), "--offload-dir: got \"/nonexistent\", which is missing"));
  const RunConfig huge =
      run_with(offloaded({{"layers", "126"}, {"hidden", "16384"}, {"heads", "128"}}, folder));
  EXPECT_TRUE(contains(refusal(huge), "of free space, but the optimizer state of 2 ranks takes"))
      << refusal(huge);
}

}  // namespace
}  // namespace tessera::train
