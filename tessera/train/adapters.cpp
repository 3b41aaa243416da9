#include "tessera/train/adapters.h"

#include <memory>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/merge.h"
#include "tessera/huggingface/peft.h"

namespace tessera::train {
namespace {

// Returns the last component of a path or of "owner/model".
std::string last_name(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

}  // namespace

Lora requested_adapters(const RunConfig& config, const ModelShape& model) {
  Lora lora{config.lora_rank, config.lora_alpha, config.lora_targets};
  if (!config.lora_from.empty()) {
    try {
      lora = huggingface::AdapterFolder(config.lora_from, model).lora();
    } catch (const UsageError& error) {
      throw UsageError(Flag("lora-from"), error.what());
    }
    if (config.lora_rank != 0 && config.lora_rank != lora.rank) {
      throw UsageError(Flag("lora-rank"),
                       str("got ", config.lora_rank, ", but the adapters in ", config.lora_from,
                           " have rank ", lora.rank, ". Omit it."));
    }
  }
  if (config.lora_dropout != -1) lora.dropout = config.lora_dropout;
  if (!lora.any() && lora.dropout != 0) {
    throw UsageError(Flag("lora-dropout"),
                     str("got ", lora.dropout,
                         " for a model without adapters. Add --lora-rank or --lora-from."));
  }
  ModelShape adapted = model;
  adapted.lora = lora;
  check_lora(adapted);
  if (!lora.any()) return lora;
  if (config.overlap_tp && config.axes.tp() > 1) {
    throw UsageError(Flag("overlap-tp"),
                     "cannot be combined with adapters (--lora-rank): their products are not "
                     "overlapped with communication. Omit one of them.");
  }
  return lora;
}

void check_adapters(const RunConfig& config, const ModelShape& model) {
  if (config.lora_from.empty() || config.init_from.empty()) return;
  const huggingface::AdapterFolder folder(config.lora_from, model);
  huggingface::check_base(config.init_from, model, folder.base_fingerprint(), "--init-from");
}

std::string adapters_note(const RunConfig& config, const ModelShape& model) {
  if (config.lora_from.empty()) return "";
  const huggingface::AdapterFolder folder(config.lora_from, model);
  const std::string start =
      config.init_from.empty() ? "a new model (no --init-from)" : quote(config.init_from);
  const bool checked =
      !config.init_from.empty() && huggingface::can_tell(folder.base_fingerprint());
  const bool named =
      !folder.base().empty() && last_name(folder.base()) == last_name(config.init_from);
  if (checked || named) return "";
  return str("The adapters in ", config.lora_from, " were trained with ",
             folder.base().empty() ? "an unnamed model" : quote(folder.base()),
             ", and this run uses ", start, ". The shapes are equal, but the models may differ.");
}

StoredValues with_adapters(StoredValues start, const RunConfig& config, const ModelShape& model) {
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
