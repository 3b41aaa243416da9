#include "tessera/train/resuming.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/shape_json.h"

namespace tessera::train {
namespace {

nlohmann::json biases_json(const Biases& biases) {
  return {{"qkv", biases.qkv}, {"out", biases.out}, {"mlp", biases.mlp}, {"norm", biases.norm}};
}

}  // namespace

std::string other_shape(const std::string& saved, const ModelShape& shape) {
  nlohmann::json was = nlohmann::json::parse(saved, nullptr, /*allow_exceptions=*/false);
  if (!was.is_object()) return "";  // not saved by tessera train: only parameters can be compared
  // Older versions did not write these keys, because only the default existed.
  const nlohmann::json usual = nlohmann::json::parse(shape_json(ModelShape{}));
  for (const char* later : {"rotary_base", "norm_eps", "head_width", "activation", "rotary_scaling",
                            "window", "window_from", "lora"}) {
    if (!was.contains(later)) was[later] = usual[later];
  }
  if (const auto it = was.find("biases"); it != was.end() && it->is_boolean()) {
    *it = biases_json(it->get<bool>());
  }
  nlohmann::json own = nlohmann::json::parse(shape_json(shape));
  // Parts that one of the two models does not have are absent there.
  for (const char* part :
       {"window_period", "window_rotary_base", "qk_norm", "post_norms", "norm_plus_one",
        "embedding_scale", "attention_scale", "attention_cap", "logit_cap", "gate"}) {
    for (nlohmann::json* each : {&was, &own}) {
      if (!each->contains(part)) (*each)[part] = nullptr;
    }
  }
  for (nlohmann::json* each : {&was, &own}) {  // dropout belongs to the training, not to the model
    if (each->contains("lora") && (*each)["lora"].is_object()) (*each)["lora"].erase("dropout");
  }
  std::vector<std::string> differences;
  for (const auto& [key, value] : own.items()) {
    const bool other_use =
        key == "name" || key == "context" || key == "init_range" || key == "family";
    if (other_use || !was.contains(key) || was[key] == value) continue;
    differences.push_back(str(key, " was ", was[key].dump(), " and is ", value.dump()));
  }
  return join(differences, ", ");
}

std::string shape_json(const ModelShape& shape) { return huggingface::shape_json(shape); }

ModelShape parse_shape_json(const std::string& json, const std::string& where) {
  return huggingface::parse_shape(json, where);
}

std::string checkpoint_to_resume(const RunConfig& config) {
  const std::string& path = config.resume;
  const auto refuse = [&](const std::string& is) {
    throw UsageError(
        Flag("resume"),
        str(quote(path), " is ", is, "; must be the folder of a checkpoint (step-… with a ",
            checkpoint::kManifestName, "), the folder of a run, auto or none"));
  };
  const std::string kind = kind_of_file(path);
  if (kind != "a folder") refuse(kind == "nothing" ? "missing" : kind);
  const auto files = checkpoint::local_files();
  if (files->exists(path + "/" + checkpoint::kManifestName)) return path;
  checkpoint::Latest latest;
  for (int attempt = 1; attempt <= kResumeAttempts; ++attempt) {
    const auto before = checkpoint::steps_in(*files, path);
    latest = checkpoint::find_latest(path);
    if (!latest.folder.empty()) return latest.folder;
    if (checkpoint::steps_in(*files, path) == before) break;
  }
  refuse(latest.skipped.empty()
             ? "a folder without a checkpoint"
             : str("a folder without a readable checkpoint: ", join(latest.skipped, "; ")));
  return "";
}

bool is_pruned(const RunConfig& config, const std::string& folder) {
  return !folder.empty() && folder != config.resume &&
         !checkpoint::local_files()->exists(folder + "/" + checkpoint::kManifestName);
}

void check_fits(const std::string& folder, const SavedRun& saved, const RunConfig& config,
                const Resolved& resolved) {
  if (saved.optimizer != name(config.optimizer)) {
    throw UsageError(Flag("resume"),
                     str(folder, " was saved with --optimizer ", saved.optimizer,
                         ", but this run has ", config.optimizer, "; must be the same"));
  }
  if (const std::string other = other_shape(saved.model, resolved.model); !other.empty()) {
    throw UsageError(Flag("resume"), str(folder, " has another model than this run: ", other));
  }
  if (!saved.tokenizer.empty() && !resolved.tokenizer.empty() &&
      saved.tokenizer != resolved.tokenizer) {
    throw UsageError(
        Flag("resume"),
        str(folder, " was trained on the tokens of another tokenizer (", saved.tokenizer,
            ") than --data ", config.data, " has (", resolved.tokenizer,
            "), so token ids have different meanings. Use data prepared with the "
            "same tokenizer."));
  }
  const bool countable = saved.step <= checkpoint::kMaxCount / resolved.global_batch;
  const std::int64_t shift = countable ? saved.samples - saved.step * resolved.global_batch : 0;
  const std::int64_t steps = steps_in_all(config, resolved, shift);
  if (saved.step > steps) {
    throw UsageError(Flag("steps"),
                     str("got ", steps, ", but ", folder, " was saved after step ", saved.step,
                         ", so there is nothing to train; must be more than ", saved.step,
                         ", or resume an earlier checkpoint"));
  }
  if (!countable) {
    throw DataError(str(folder, ": ", saved.step, " steps of --global-batch ",
                        resolved.global_batch, " take more samples than the maximum of ",
                        checkpoint::kMaxCount));
  }
}

std::string later_checkpoint(const RunConfig& config, std::int64_t steps) {
  if (config.save.empty()) return "";
  const auto known = checkpoint::steps_in(*checkpoint::local_files(), config.save);
  if (known.empty() || known.back() <= steps) return "";
  return str("--save: ", config.save, " has a checkpoint of step ", known.back(),
             ", later than the start of this run (step ", steps,
             "), and a restart would resume from it. Choose another folder, continue from it "
             "with --resume auto, or remove it.");
}

namespace {

// Checks the checkpoint to resume from. Returns its step; 0 for a fresh start.
std::int64_t check_checkpoint(const std::string& folder, const RunConfig& config,
                              const Resolved& resolved) {
  if (folder.empty()) return 0;
  checkpoint::Checkpoint from(folder);
  if (config.resume != "auto") from.check_files();
  const checkpoint::Description& about = from.about();
  const auto extra = [&](const char* key) {
    const auto found = about.extra.find(key);
    return found == about.extra.end() ? std::string() : found->second;
  };
  check_fits(folder,
             {about.step, about.model, extra("optimizer"), extra("tokenizer"), about.samples},
             config, resolved);
  return about.step;
}

}  // namespace

void check_resume(const RunConfig& config, const Resolved& resolved) {
  const bool newest = config.resume == "auto";
  std::int64_t steps = 0;
  for (int attempt = 1;; ++attempt) {
    std::string folder;
    if (newest) {
      folder = checkpoint::find_latest(config.save).folder;
    } else if (config.resume != "none") {
      folder = checkpoint_to_resume(config);
    }
    try {
      steps = check_checkpoint(folder, config, resolved);
      break;
    } catch (const DataError&) {
      if (attempt == kResumeAttempts || !is_pruned(config, folder)) throw;
    }
  }
  if (newest) return;
  if (const std::string problem = later_checkpoint(config, steps); !problem.empty()) {
    throw UsageError(problem);
  }
}

}  // namespace tessera::train
