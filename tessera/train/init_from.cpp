#include "tessera/train/init_from.h"

#include <memory>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/lora.h"
#include "tessera/core/text.h"
#include "tessera/data/tokenizer.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/model_config.h"
#include "tessera/huggingface/model_folder.h"
#include "tessera/huggingface/param_pieces.h"
#include "tessera/huggingface/shape_json.h"
#include "tessera/parallel/initial.h"

namespace tessera::train {
namespace {

// Returns the checkpoint at `path`, or the newest one in it; "" for a Hugging Face folder.
std::string start_checkpoint(const std::string& path) {
  if (checkpoint::local_files()->exists(path + "/" + checkpoint::kManifestName)) return path;
  if (huggingface::has_config(path)) return "";
  const std::string kind = kind_of_file(path);
  std::string is = kind == "nothing" ? "missing" : kind;
  if (kind == "a folder") {
    const checkpoint::Latest latest = checkpoint::find_latest(path);
    if (!latest.folder.empty()) return latest.folder;
    is = latest.skipped.empty()
             ? "a folder without a config.json or a checkpoint"
             : str("a folder without a readable checkpoint: ", join(latest.skipped, "; "));
  }
  throw UsageError(Flag("init-from"),
                   str(quote(path), " is ", is,
                       "; must be a Hugging Face folder (config.json, model.safetensors), a "
                       "checkpoint, or the folder of a run"));
}

[[noreturn]] void refuse_param(const std::string& path, const ParamSpec& spec) {
  throw UsageError(Flag("init-from"), str(path, " has no parameter ", quote(spec.name),
                                          " of the same shape. It is another model."));
}

// Returns the fingerprint of the tokenizer that the model was trained with; "" if unknown.
std::string tokenizer_of_start(const std::string& path, const std::string& folder) {
  if (!folder.empty()) {
    const checkpoint::Checkpoint from(folder);
    const auto found = from.about().extra.find("tokenizer");
    return found == from.about().extra.end() ? std::string() : found->second;
  }
  if (kind_of_file(path + "/tokenizer.json") != "a regular file") return "";
  try {
    return data::load_tokenizer(path)->fingerprint();
  } catch (const Error&) {
    return "";  // a tokenizer that cannot be read here did not make the data either
  }
}

void refuse_other_tokenizer(const RunConfig& config, const Resolved& resolved,
                            const std::string& folder) {
  if (resolved.tokenizer.empty()) return;
  const std::string own = tokenizer_of_start(config.init_from, folder);
  if (own.empty() || own == resolved.tokenizer) return;
  throw UsageError(Flag("init-from"),
                   str(config.init_from, " has another tokenizer (", own, ") than --data ",
                       config.data, " was made with (", resolved.tokenizer,
                       "), so token ids have different meanings. Prepare the data with the "
                       "tokenizer of the model: tessera data prepare --tokenizer ",
                       config.init_from));
}

}  // namespace

ModelShape initial_shape(const std::string& path) {
  const std::string folder = start_checkpoint(path);
  if (folder.empty()) return huggingface::Folder(path).shape();
  const checkpoint::Checkpoint from(folder);
  return huggingface::parse_shape(from.about().model, folder);
}

void check_start(const RunConfig& config, const Resolved& resolved) {
  if (config.init_from.empty()) return;
  const std::string folder = start_checkpoint(config.init_from);
  refuse_other_tokenizer(config, resolved, folder);
  if (folder.empty()) {
    const huggingface::Folder whole(config.init_from);
  } else {
    checkpoint::Checkpoint(folder).check_files();
  }
}

StoredValues stored_start(const RunConfig& config) {
  StoredValues stored;
  if (config.init_from.empty()) return stored;
  const std::string folder = start_checkpoint(config.init_from);
  if (folder.empty()) {
    const auto from = std::make_shared<huggingface::Folder>(config.init_from);
    stored.has = [from](const ParamSpec& spec) {
      if (from->has(spec.name) && from->shape_of(spec.name) == spec.shape) return true;
      if (is_adapter_param(spec.name) || huggingface::is_model_buffer(spec.name)) return false;
      refuse_param(from->path(), spec);
    };
    stored.read = [from](const ParamSpec& spec, const std::vector<Run>& runs, float* into) {
      from->read(spec.name, runs, DType::f32, reinterpret_cast<std::byte*>(into));
    };
    return stored;
  }
  const auto from = std::make_shared<checkpoint::Checkpoint>(folder);
  stored.has = [from](const ParamSpec& spec) {
    const ParamSpec* const there = from->find(spec.name);
    if (there != nullptr && there->shape == spec.shape) return true;
    if (is_adapter_param(spec.name) || huggingface::is_model_buffer(spec.name)) return false;
    refuse_param(from->folder(), spec);
  };
  stored.read = [from](const ParamSpec& spec, const std::vector<Run>& runs, float* into) {
    from->load({{spec.name,
                 huggingface::state_of(spec.name),
                 DType::f32,
                 runs,
                 reinterpret_cast<std::byte*>(into),
                 {}}});
  };
  return stored;
}

std::vector<std::string> start_notes(const RunConfig& config) {
  if (config.init_from.empty() || !start_checkpoint(config.init_from).empty()) return {};
  const huggingface::Folder folder(config.init_from);
  std::vector<std::string> notes = folder.notes();
  const double dropout = folder.config().dropout;
  if (dropout != 0 && config.dropout == 0 && config.attention_dropout == 0) {
    notes.push_back(str(config.init_from, " was configured for training with dropout ", dropout,
                        ". This run has none; --dropout and --attention-dropout set it."));
  }
  return notes;
}

void keep_companions(const RunConfig& config) {
  if (config.save.empty()) return;
  if (config.init_from.empty()) {  // the model uses the tokenizer of the data
    for (const std::string& folder : data::token_folders(config.data)) {
      if (kind_of_file(folder + "/tokenizer.json") != "a regular file") continue;
      return huggingface::keep_companions(folder, config.save);
    }
    return;
  }
  const std::string folder = start_checkpoint(config.init_from);
  const std::string from = folder.empty() ? config.init_from : huggingface::companions_of(folder);
  if (!from.empty()) huggingface::keep_companions(from, config.save);
}

}  // namespace tessera::train
