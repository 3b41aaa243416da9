#include "tessera/train/config_checks.h"

#include <utility>

#include "tessera/comm/backend_kind.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/train/elastic.h"

namespace tessera::train {

void check_together(const TrainConfig& config, int ranks) {
  if (config.device == "cpu" && comm::backend_kind(config.backend).needs_gpu) {
    throw UsageError(str("--backend: got ", config.backend,
                         ", which needs --device cuda; wanted auto, shm or mpi"));
  }
  if (config.device == "cpu" && config.layout == "fp16") {
    throw UsageError(
        "--layout: got fp16 with --device cpu, but layout fp16 scales the loss in the step on a "
        "GPU; wanted bf16, or --device cuda");
  }
  if (config.device == "cpu" && config.cuda_graph == "on") {
    throw UsageError(
        "--cuda-graph: got on with --device cpu, where there are none; wanted auto, or --device "
        "cuda");
  }
  if (comm::backend_kind(config.backend).simulated) {
    for (const auto& [asked, flag] :
         {std::pair(!config.save.empty(), "--save"), std::pair(config.resume != "none", "--resume"),
          std::pair(config.max_restarts > 0, "--max-restarts"),
          std::pair(!config.init_from.empty(), "--init-from"),
          std::pair(config.comm == "off", "--comm off")}) {
      if (!asked) continue;
      throw UsageError(str("--backend: got ", config.backend, " with ", flag,
                           ", but the other ranks are not there: what it trains is of no use; "
                           "wanted another backend"));
    }
  }
  if (!config.elastic.empty()) {
    check_elastic(config, ranks);
    if (config.max_restarts == 0) {
      throw UsageError(
          str("--elastic: got ", quote(config.elastic),
              " without --max-restarts, and only a restart can go on with fewer ranks; "
              "wanted both"));
    }
  }
  for (const auto& [asked, flag] : {std::pair(config.eval_every > 0, "--eval-every"),
                                    std::pair(config.eval_batches > 0, "--eval-batches")}) {
    if (asked && config.val_data.empty() && config.val_fraction == 0) {
      throw UsageError(
          str(flag, " needs data to validate on; wanted --val-data or --val-fraction too"));
    }
  }
  for (const auto& [asked, flag] : {std::pair(config.resume == "auto", "--resume auto"),
                                    std::pair(config.save_every > 0, "--save-every"),
                                    std::pair(config.max_restarts > 0, "--max-restarts"),
                                    std::pair(config.on_save_error != "stop", "--on-save-error"),
                                    std::pair(config.on_nan == "rollback", "--on-nan rollback")}) {
    if (asked && config.save.empty()) {
      throw UsageError(str(flag, " needs --save, the folder of the checkpoints"));
    }
  }
  if (config.comm == "off" && !config.save.empty()) {
    throw UsageError(
        "--save: got --comm off, whose ranks train models that differ; wanted one of "
        "them");
  }
  if (!config.hardware_file.empty() && config.hardware.empty()) {
    throw UsageError(str("--hardware-file: got ", quote(config.hardware_file),
                         " without --hardware, the name of an entry; wanted both"));
  }
}

}  // namespace tessera::train
