// Runs that fine-tune small models with adapters.
#pragma once

#include <map>

#include "tests/temporary_folder.h"
#include "tests/train/small_runs.h"

namespace tessera::train::tuning {

inline constexpr int kTuningSteps = 3;

inline RunConfig tuned(const std::string& model, const std::string& targets = "all") {
  RunConfig config = small_run(model, kTuningSteps, 5e-2);
  config.lora_rank = 4;
  config.lora_targets = targets;
  return config;
}

inline const Outcomes& in_one_process(const RunConfig& config) {
  static std::map<std::string, Outcomes> known;
  const std::string key =
      str(config.model_name, " ", config.lora_targets, " ", config.lora_dropout);
  if (!known.contains(key)) {
    RunConfig alone = tuned(config.model_name, config.lora_targets);
    alone.lora_dropout = config.lora_dropout;
    known[key] = run_all(alone);
  }
  return known[key];
}

inline void expect_same(const RunConfig& config) {
  train::expect_same(config, run_all(config), in_one_process(config), 0.01);
}

using Folder = TemporaryFolder;

}  // namespace tessera::train::tuning
