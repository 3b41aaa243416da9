#include "tessera/train/saving.h"

#include <filesystem>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/train/resuming.h"

namespace tessera::train {
namespace {

std::string value_of(const Extra& extra, const char* key) {
  const auto found = extra.find(key);
  return found == extra.end() ? std::string() : found->second;
}

// Returns the settings that determine the samples, besides data, seed and length.
std::string reading(const RunConfig& config) {
  SampleOrder order = config.sample_order;
  if (order == SampleOrder::automatic) {
    const bool walks =
        config.epochs > 0 || config.pack == Packing::none || data::has_tokens(config.data);
    order = walks ? SampleOrder::shuffle : SampleOrder::random;
  }
  return str("--order ", order, " --documents ", config.documents, " --pack ", config.pack,
             " --val-fraction ", config.val_fraction);
}

SaveOptions save_options(const RunConfig& config) {
  SaveOptions options;
  options.keep_last = static_cast<int>(config.keep_last);
  options.keep_every = config.keep_every;
  options.retries = static_cast<int>(config.save_retries);
  options.return_failures = config.on_save_error == OnSaveError::warn;
  // A run with adapters saves only these: --init-from has the base model.
  options.frozen = config.lora_rank == 0 && config.lora_from.empty();
  options.lock = false;  // the launcher of the ranks holds it
  return options;
}

}  // namespace

Saver::Saver(const RunConfig& config, const Resolved& resolved, ParallelModel& model,
             const comm::Group& world)
    : config_(config), resolved_(resolved), model_(model), world_(world) {
  if (config.save.empty()) return;
  lock_file_ = checkpoint::lock_file(config.save);
  saver_.emplace(model, config.save, save_options(config));
}

// Collective. Makes and locks the folder again if it was removed during the run. Throws if another
// run has locked it since.
void Saver::keep_lock() {
  on_rank_0([this] {
    if (!lock_file_.exists() || checkpoint::lock_file(config_.save) == lock_file_) return "";
    try {
      lock_ = std::make_unique<checkpoint::FolderLock>(config_.save, "tessera train");
    } catch (const Error& error) {
      throw UsageError(Flag("save"),
                       str(config_.save, " was removed during the run: ", error.what()));
    }
    lock_file_ = checkpoint::lock_file(config_.save);
    Logger().warn(str("--save: ", config_.save,
                      " was removed during the run. It was made and locked again, but the "
                      "checkpoints that were in it are lost."));
    return "";
  });
}

void Saver::save(std::int64_t steps, std::int64_t samples) {
  keep_lock();
  Extra extra = {{"optimizer", str(config_.optimizer)},
                 {"data", config_.data},
                 {"reading", reading(config_)},
                 {"tokenizer", resolved_.tokenizer},
                 {"seq", str(resolved_.seq)},
                 {"global_batch", str(resolved_.global_batch)},
                 {"micro_batch", str(config_.micro_batch)},
                 {"overlap_tp", config_.overlap_tp ? "yes" : "no"},
                 {"matmul_precision", str(config_.matmul_precision)},
                 {"precision", str(config_.precision)}};
  // Adapters are loaded with their base model, perhaps from another working directory.
  if (!config_.init_from.empty()) {
    extra["init_from"] = std::filesystem::absolute(config_.init_from).lexically_normal().string();
  }
  const RunFacts facts = {steps, samples, static_cast<std::uint64_t>(config_.seed),
                          shape_json(resolved_.model)};
  // A save in the background copies the state to memory, which may not hold offloaded state.
  if (config_.async_save && !config_.offloads_optimizer()) {
    saver_->start(model_, extra, facts);
  } else {
    saver_->save_now(model_, extra, facts);
  }
}

LastSave Saver::finish() {
  LastSave last;
  if (!saver_) return last;
  const Saved saved = saver_->wait();
  last.folder = saved.folder;
  last.failure = saved.failure;
  if (!last.failure.empty() && world_.rank() == 0) {
    last.last_good = checkpoint::find_latest(config_.save).folder;
  }
  return last;
}

// Returns the reasons that a resumed run is not bitwise equal to one that was never interrupted.
std::vector<std::string> Saver::differences(const Loaded& loaded) const {
  const std::string& folder = loaded.folder;
  const auto was = [&](const char* key) { return value_of(loaded.extra, key); };
  std::vector<std::string> notes;
  // Older checkpoints have no such entry, because only the default existed.
  const std::string read = was("reading").empty() ? reading(RunConfig{}) : was("reading");
  if (loaded.seed != static_cast<std::uint64_t>(config_.seed) || was("data") != config_.data ||
      was("seq") != str(resolved_.seq) || read != reading(config_)) {
    notes.push_back(str("different samples: ", folder, " was saved with --seed ", loaded.seed,
                        " --data ", was("data"), " --seq ", was("seq"), " ", read,
                        ", and this run has --seed ", config_.seed, " --data ", config_.data,
                        " --seq ", resolved_.seq, " ", reading(config_)));
  }
  const std::string batch = str(resolved_.global_batch);
  if (!was("global_batch").empty() && was("global_batch") != batch) {
    notes.push_back(str("different batch: ", folder, " was saved with --global-batch ",
                        was("global_batch"), ", and this run has ", batch,
                        ". It continues with the next sample, number ", loaded.samples,
                        ". The learning rate still depends on the number of steps"));
  }
  const auto shown = [](const Axes& mesh, const std::string& micro, bool overlap) {
    std::string text;
    for (const Axis axis : kPrintedAxes) {
      if (is_optional(axis) && mesh.size(axis) == 1) continue;
      text += str(axis_flag(axis), " ", mesh.given(axis), " ");
    }
    return str(text, "--micro-batch ", micro, overlap ? " --overlap-tp" : "");
  };
  const std::string before = shown(loaded.axes, was("micro_batch"), was("overlap_tp") == "yes");
  const std::string now = shown(model_.mesh().axes(), str(config_.micro_batch), config_.overlap_tp);
  if (before != now) {
    notes.push_back(str("different order of summation: ", folder, " was saved with ", before,
                        ", and this run has ", now,
                        ". Results are equal within rounding, not bit for bit"));
  }
  const std::string precision(was("matmul_precision"));
  if (const std::string mine = str(config_.matmul_precision);
      (precision.empty() ? str(MatmulPrecision::highest) : precision) != mine) {
    notes.push_back(str("different precision of fp32 products: ", folder,
                        " was saved with --matmul-precision ", precision, ", and this run has ",
                        mine));
  }
  const std::string linears(was("precision"));
  if (const std::string mine = str(config_.precision);
      (linears.empty() ? str(Precision::layout) : linears) != mine) {
    notes.push_back(str("different precision of linears: ", folder, " was saved with --precision ",
                        linears.empty() ? str(Precision::layout) : linears, ", and this run has ",
                        mine));
  }
  return notes;
}

LoadOptions Saver::load_options() const {
  LoadOptions options;
  options.convert_optimizer_state = config_.convert_optimizer_state;
  options.check = [this](const Loaded& loaded) {
    check_fits(loaded.folder,
               {loaded.step, loaded.model, value_of(loaded.extra, "optimizer"),
                value_of(loaded.extra, "tokenizer"), loaded.samples},
               config_, resolved_);
  };
  return options;
}

Saver::Resumed Saver::resumed(const Loaded& loaded) const {
  std::vector<std::string> notes = differences(loaded);
  notes.insert(notes.end(), loaded.notes.begin(), loaded.notes.end());
  return {loaded.folder, loaded.step, loaded.samples, std::move(notes)};
}

std::optional<Saver::Resumed> Saver::resume(std::vector<std::string>& notes) {
  std::optional<Resumed> found;
  if (config_.resume == "auto") {
    found = resume_newest(&notes);
  } else {
    for (int attempt = 1; config_.resume != "none" && !found; ++attempt) {
      const std::string folder = on_rank_0([this] { return checkpoint_to_resume(config_); });
      try {
        found = resumed(load(model_, folder, load_options()));
      } catch (const Error&) {
        if (attempt == kResumeAttempts || !is_pruned(config_, folder)) throw;
      }
    }
    reject_later(found ? found->steps : 0);
  }
  if (found) notes.insert(notes.end(), found->notes.begin(), found->notes.end());
  return found;
}

std::optional<Saver::Resumed> Saver::resume_newest(std::vector<std::string>* notes) {
  if (config_.save.empty()) return std::nullopt;
  const std::optional<Loaded> loaded = load_if_any(model_, config_.save, load_options());
  if (!loaded) return std::nullopt;
  if (notes != nullptr) {
    notes->insert(notes->end(), loaded->skipped.begin(), loaded->skipped.end());
  }
  return resumed(*loaded);
}

// Collective. Calls `find` on rank 0, and returns its result, or throws its error, on all ranks:
// files may change between the calls of different ranks.
std::string Saver::on_rank_0(const std::function<std::string()>& find) const {
  std::string found, problem;
  if (world_.rank() == 0) {
    try {
      found = find();
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  const auto first = [this](const std::string& text) {
    return parallel::gather_texts(world_, text, "checkpoint").front();
  };
  problem = first(problem);
  if (!problem.empty()) throw UsageError(problem);
  return first(found);
}

void Saver::reject_later(std::int64_t steps) const {
  if (config_.save.empty()) return;
  const std::string problem = on_rank_0([&] { return later_checkpoint(config_, steps); });
  if (!problem.empty()) throw UsageError(problem);
}

}  // namespace tessera::train
