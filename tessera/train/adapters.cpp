#include "tessera/train/adapters.h"

#include <memory>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/peft.h"

namespace tessera::train {

Lora adapters_asked(const TrainConfig& config, const ModelShape& model) {
  Lora lora{config.lora_rank, config.lora_alpha, config.lora_targets};
  if (!config.lora_from.empty()) {
    try {
      lora = huggingface::AdapterFolder(config.lora_from, model).lora();
    } catch (const UsageError& error) {
      throw UsageError(str("--lora-from: ", error.what()));
    }
    if (config.lora_rank != 0 && config.lora_rank != lora.rank) {
      throw UsageError(str("--lora-rank: got ", config.lora_rank, ", but the adapters in ",
                           config.lora_from, " have rank ", lora.rank, "; leave it out"));
    }
  }
  ModelShape adapted = model;
  adapted.lora = lora;
  check_lora(adapted);
  if (!lora.any()) return lora;
  if (config.overlap_tp && config.axes.tp() > 1) {
    throw UsageError(
        "--overlap-tp: got adapters (--lora-rank) too, whose products do not run while the ranks "
        "talk; wanted one of them");
  }
  return lora;
}

StoredValues with_adapters(StoredValues start, const TrainConfig& config, const ModelShape& model) {
  if (config.lora_from.empty()) return start;
  const auto folder = std::make_shared<huggingface::AdapterFolder>(config.lora_from, model);
  StoredValues all;
  all.has = [start, folder](const ParamSpec& spec) {
    return folder->has(spec.name) || (start.has && start.has(spec));
  };
  all.read = [start, folder](const ParamSpec& spec, const std::vector<Run>& runs, float* into) {
    if (folder->has(spec.name)) {
      folder->read(spec.name, runs, into);
    } else {
      start.read(spec, runs, into);
    }
  };
  return all;
}

}  // namespace tessera::train
