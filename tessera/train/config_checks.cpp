#include "tessera/train/config_checks.h"

#include <utility>

#include "tessera/comm/backend_kind.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/train/elastic.h"

namespace tessera::train {

void check_combinations(const TrainConfig& config, int ranks) {
  if (config.device == "cpu" && comm::backend_kind(config.backend).needs_gpu) {
    throw UsageError(str("--backend: got ", config.backend,
                         ", which needs --device cuda; must be auto, shm or mpi"));
  }
  if (config.device == "cpu" && config.layout == "fp16") {
    throw UsageError(
        "--layout: got fp16 with --device cpu, but the loss scaling of layout fp16 is implemented "
        "only for GPUs. Use bf16, or --device cuda.");
  }
  if (config.device == "cpu" && config.cuda_graph == "on") {
    throw UsageError(
        "--cuda-graph: got on with --device cpu, which has no CUDA graphs. Use auto, or --device "
        "cuda.");
  }
  if (comm::backend_kind(config.backend).simulated) {
    for (const auto& [asked, flag] :
         {std::pair(!config.save.empty(), "--save"), std::pair(config.resume != "none", "--resume"),
          std::pair(config.max_restarts > 0, "--max-restarts"),
          std::pair(!config.init_from.empty(), "--init-from"),
          std::pair(config.comm == "off", "--comm off")}) {
      if (!asked) continue;
      throw UsageError(str("--backend: got ", config.backend, " with ", flag,
                           ", but it simulates the other ranks, so the trained parameters are "
                           "meaningless. Use another backend."));
    }
  }
  if (!config.elastic.empty()) {
    check_elastic(config, ranks);
    if (config.max_restarts == 0) {
      throw UsageError(
          str("--elastic: got ", quote(config.elastic),
              " without --max-restarts, but only a restart can continue with fewer ranks. "
              "Add --max-restarts."));
    }
  }
  for (const auto& [asked, flag] : {std::pair(config.eval_every > 0, "--eval-every"),
                                    std::pair(config.eval_batches > 0, "--eval-batches")}) {
    if (asked && config.val_data.empty() && config.val_fraction == 0) {
      throw UsageError(str(flag, " needs validation data. Add --val-data or --val-fraction."));
    }
  }
  for (const auto& [asked, flag] : {std::pair(config.resume == "auto", "--resume auto"),
                                    std::pair(config.save_every > 0, "--save-every"),
                                    std::pair(config.max_restarts > 0, "--max-restarts"),
                                    std::pair(config.on_save_error != "stop", "--on-save-error"),
                                    std::pair(config.on_nan == "rollback", "--on-nan rollback")}) {
    if (asked && config.save.empty()) {
      throw UsageError(str(flag, " needs --save, the folder for checkpoints"));
    }
  }
  if (config.comm == "off" && !config.save.empty()) {
    throw UsageError(
        "--save: cannot be combined with --comm off, whose ranks train different models. Omit "
        "one of them.");
  }
  if (!config.hardware_file.empty() && config.hardware.empty()) {
    throw UsageError(str("--hardware-file: got ", quote(config.hardware_file),
                         " without --hardware, the name of an entry. Add --hardware."));
  }
}

}  // namespace tessera::train
