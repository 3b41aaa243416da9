// Loading: load() and load_if_any() of save.h.

#include <algorithm>
#include <exception>
#include <set>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/message_of.h"
#include "tessera/core/run_options.h"
#include "tessera/core/text.h"
#include "tessera/parallel/frozen.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/parallel/save.h"
#include "tessera/parallel/state_shards.h"

namespace tessera {
namespace {

// Verdict of a rank on a checkpoint: it can be loaded, it cannot be read, or it does not fit.
constexpr char kGood = '+', kUnreadable = '-', kWrong = '!';

// Lists the first few names and the number of the others.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, names.size())));
  return join(shown, ", ") +
         (names.size() > kMost ? str(" and ", names.size() - kMost, " more") : std::string());
}

// Attempt of all ranks to load one checkpoint.
class Attempt {
 public:
  Attempt(const Checkpointable& what, std::string folder, const LoadOptions& options)
      : what_(what), folder_(std::move(folder)), options_(options) {}

  // Collective. Returns false if it cannot be read, for the reason in problem(). Throws on all
  // ranks if it does not fit on any of them.
  bool run() {
    const std::vector<std::string> found = agree([&] { return open(); });
    if (found.empty()) return false;
    check_all_wanted(found);
    check_frozen();
    touched_ = true;
    if (agree([&] { return read(); }).empty()) return false;
    what_.engine.resume(options_.params_only ? what_.engine.progress() : counts_);
    return true;
  }
  const std::string& problem() const { return problem_; }
  bool touched() const { return touched_; }  // true if the engine's memory was overwritten
  Loaded& loaded() { return loaded_; }

 private:
  // Collective. Returns the texts of all ranks; empty if some rank cannot read the checkpoint.
  template <typename F>
  std::vector<std::string> agree(F&& body) {
    std::string text;
    std::exception_ptr own;
    try {
      text = kGood + body();
    } catch (const DataError& error) {
      text = kUnreadable + std::string(error.what());
    } catch (const std::exception& error) {
      text = kWrong + message_of(error);
      own = std::current_exception();
    }
    std::vector<std::string> texts = parallel::gather_texts(what_.world, text, "checkpoint");
    if (own) std::rethrow_exception(own);
    for (const char mark : {kWrong, kUnreadable}) {
      for (std::size_t rank = 0; rank < texts.size(); ++rank) {
        if (texts[rank][0] != mark) continue;
        problem_ = texts[rank].substr(1);
        if (mark == kUnreadable) return {};
        throw PeerError(str("rank ", rank, " cannot load: ", problem_), static_cast<int>(rank));
      }
    }
    return texts;
  }

  // Reads the manifest and compares it with the state of this rank. Returns a digit for each
  // parameter of the manifest: '1' if this rank loads it.
  std::string open() {
    from_.emplace(folder_, checkpoint::local_files(), parallel::charge_of(what_.engine));
    if (what_.world.rank() == 0) from_->check_files();  // report damage before other differences
    const checkpoint::Description& about = from_->about();
    loaded_ = {folder_,    about.step,  about.extra,  about.samples,
               about.seed, about.model, about.layout, about.mesh,
               {},         {}};
    if (const auto found = loaded_.extra.find(parallel::kFrozen); found != loaded_.extra.end()) {
      frozen_ = found->second;
    }
    counts_ = parallel::take_counts(loaded_.extra, folder_);
    if (options_.check) options_.check(loaded_);
    trained_ = what_.engine.progress().updates;
    const auto takes = [&](const zero::StateShard& shard) {
      if (shard.state == "param" || shard.state == "buffer") return true;
      return !options_.params_only && !is_new(shard.param);
    };
    state_ = parallel::state_to_load(what_, takes, frozen_.empty());
    for (const auto& [param, updates] : trained_) {
      if (is_new(param)) counts_.updates[param] = 0;
    }
    try {
      from_->expect(state_.specs);
    } catch (const DataError& error) {
      throw UsageError(error.what());  // the file is intact, but of another model
    }
    check_states();
    if (!options_.params_only) check_optimizer_state();
    if (!options_.params_only) note_removed();
    std::set<std::string> wanted;
    for (const ParamSpec& spec : state_.specs) wanted.insert(spec.name);
    std::string digits;
    for (const ParamSpec& spec : about.params) digits += wanted.contains(spec.name) ? '1' : '0';
    return digits;
  }

  // Returns true if a parameter that is trained here was frozen when the checkpoint was saved, and
  // LoadOptions allow it.
  bool is_new(const std::string& param) const {
    const auto states = from_->states(param);
    return options_.other_trainable && trained_.contains(param) && states.size() == 1 &&
           states.contains("param");
  }

  // Returns true if a parameter that is frozen here was trained when the checkpoint was saved, and
  // LoadOptions allow it.
  bool is_frozen_now(const std::string& param) const {
    return options_.other_trainable && !trained_.contains(param) && from_->states(param).size() > 1;
  }

  // Throws UsageError if this optimizer has other states than the one that saved.
  void check_states() const {
    std::map<std::string, std::set<std::string>> wanted;
    for (const checkpoint::WantedShard& shard : state_.shards) {
      if (!shard.runs.empty()) wanted[shard.param].insert(shard.state);
    }
    for (const auto& [param, states] : wanted) {
      std::vector<std::string> have, missing, surplus;
      for (const auto& [state, dtype] : from_->states(param)) {
        have.push_back(state);
        const bool known = states.contains(state) || !why_removed(state).empty();
        if (!known) surplus.push_back(state);
      }
      for (const std::string& state : states) {
        if (std::find(have.begin(), have.end(), state) == have.end()) missing.push_back(state);
      }
      if (!missing.empty()) {
        throw UsageError(str(folder_, ": parameter ", quote(param), " has ", join(have, ", "),
                             ", but this engine also needs ", join(missing, ", "),
                             ". It was saved with another optimizer, or while the parameter was "
                             "frozen, which LoadOptions::other_trainable allows. "
                             "LoadOptions::params_only loads no optimizer state"));
      }
      if (!surplus.empty() && !options_.params_only && !is_frozen_now(param)) {
        throw UsageError(str(folder_, ": parameter ", quote(param), " has ", join(surplus, ", "),
                             ", which this engine does not have. It was saved with another "
                             "optimizer, or the parameter is frozen here, which "
                             "LoadOptions::other_trainable allows. LoadOptions::params_only loads "
                             "no optimizer state"));
      }
    }
  }

  // Returns the format of AdamW's moments with these types, which zero::StoredState chooses;
  // nullopt for other states.
  static std::optional<OptimizerState> format_of(const std::map<std::string, DType>& states) {
    const auto first = states.find("moment1"), second = states.find("moment2");
    if (first == states.end() || second == states.end()) return std::nullopt;
    if (first->second == DType::f32) return OptimizerState::fp32;
    if (first->second != DType::bf16) return std::nullopt;
    return second->second == DType::bf16 ? OptimizerState::bf16 : OptimizerState::int8;
  }

  // Throws UsageError if the moments have another format than those of this engine.
  void check_optimizer_state() {
    const OptimizerState own = what_.engine.options().optimizer_state;
    for (const auto& [param, updates] : trained_) {
      const auto saved = format_of(from_->states(param));
      if (!saved || *saved == own) continue;
      if (!options_.convert_optimizer_state) {
        throw UsageError(str(folder_, ": the moments were saved as ", name(*saved),
                             ", but this run stores them as ", name(own),
                             ". Use --optimizer-state ", name(*saved),
                             ", or convert them: --convert-optimizer-state, in a program "
                             "LoadOptions::convert_optimizer_state"));
      }
      converts_ = true;
    }
    if (!converts_) return;
    loaded_.notes.push_back(
        str(folder_, ": the moments were converted to ", name(own),
            own == OptimizerState::fp32 ? ", which is exact" : ", rounded to nearest"));
  }

  // Adds a note on states that earlier versions saved and this one ignores.
  void note_removed() {
    std::int64_t params = 0;
    std::string removed;
    for (const ParamSpec& spec : from_->about().params) {
      const auto states = from_->states(spec.name);
      const auto found = std::find_if(states.begin(), states.end(), [](const auto& state) {
        return !why_removed(state.first).empty();
      });
      if (found == states.end()) continue;
      removed = found->first;
      ++params;
    }
    if (params == 0) return;
    loaded_.notes.push_back(str(folder_, ": the state ", removed, " of ",
                                plural(params, "parameter"), " is ignored. ",
                                why_removed(removed)));
  }

  // Throws UsageError if the checkpoint has a parameter that no rank loads.
  void check_all_wanted(const std::vector<std::string>& found) const {
    std::vector<std::string> surplus;
    const std::vector<ParamSpec>& params = from_->about().params;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (std::any_of(found.begin(), found.end(),
                      [&](const std::string& digits) { return digits.at(i + 1) == '1'; })) {
        continue;
      }
      if (!from_->states(params[i].name).empty()) surplus.push_back(params[i].name);
    }
    if (surplus.empty()) return;
    throw UsageError(str(folder_, " has parameters that the model does not have: ",
                         some_of(surplus), ". It was saved from another model"));
  }

  // Collective. Throws UsageError unless the frozen parameters that the checkpoint omits are equal.
  void check_frozen() {
    if (frozen_.empty()) return;
    const std::string own = parallel::fingerprint_of_frozen(what_);
    if (own == frozen_) return;
    throw UsageError(str(
        folder_, " omits the frozen parameters, and ",
        own.empty() ? std::string("this model has none")
                    : str("those of this model differ: fingerprint ", own, ", must be ", frozen_),
        ". Start from the model that was fine-tuned (--init-from), and freeze it"));
  }

  std::string read() {
    const at::NoGradGuard no_grad;
    std::vector<checkpoint::WantedShard> as_saved, rounded;
    for (checkpoint::WantedShard& shard : state_.shards) {
      const bool converted = converts_ && shard.state.starts_with("moment");
      (converted || is_frozen_now(shard.param) ? rounded : as_saved).push_back(std::move(shard));
    }
    from_->load(as_saved);
    // The master copy of a parameter that is frozen now is rounded to the layout's type, and
    // moments to their format.
    if (!rounded.empty()) from_->load(rounded, checkpoint::Rounding::nearest);
    for (auto& [to, from] : state_.copies) to.copy_(from);
    return "";
  }

  const Checkpointable& what_;
  const std::string folder_;
  const LoadOptions& options_;
  std::optional<checkpoint::Checkpoint> from_;
  parallel::StateToLoad state_;
  zero::StepCounts counts_;
  std::map<std::string, std::int64_t> trained_;  // parameters that this engine trains
  Loaded loaded_;
  std::string frozen_;  // fingerprint of the omitted parameters
  std::string problem_;
  bool touched_ = false;
  bool converts_ = false;  // moments of another format
};

// Collective. Returns `dir` if it is a checkpoint, otherwise the checkpoints in it, newest first.
// All ranks use the list of the first rank, even if checkpoints appear in the meantime.
std::vector<std::string> candidates(const comm::Group& world, const std::string& dir) {
  std::vector<std::string> found;
  if (world.rank() == 0) {
    const auto files = checkpoint::local_files();
    if (files->exists(dir + "/" + checkpoint::kManifestName)) {
      found.push_back(dir);
    } else {
      for (const std::int64_t step : checkpoint::steps_in(*files, dir)) {
        found.insert(found.begin(), str(dir, "/", checkpoint::folder_name(step)));
      }
    }
  }
  constexpr char kEnd = '\0';
  std::string text;
  for (const std::string& folder : found) text += folder + kEnd;
  text = parallel::team_of(world).broadcast(text);
  found.clear();
  for (std::size_t at = 0, end = 0; (end = text.find(kEnd, at)) != std::string::npos;
       at = end + 1) {
    found.push_back(text.substr(at, end - at));
  }
  return found;
}

}  // namespace

std::optional<Loaded> load_if_any(const Checkpointable& what, const std::string& dir,
                                  const LoadOptions& options) {
  const std::vector<std::string> folders = candidates(what.world, dir);
  std::vector<std::string> skipped;
  bool touched = false;
  for (const std::string& folder : folders) {
    Attempt attempt(what, folder, options);
    if (attempt.run()) {
      attempt.loaded().skipped = std::move(skipped);
      return std::move(attempt.loaded());
    }
    touched = touched || attempt.touched();
    if (folder == dir) throw DataError(attempt.problem());
    skipped.push_back(str("passed over: ", folder, ": ", attempt.problem()));
  }
  if (skipped.empty()) return std::nullopt;
  throw DataError(str("No checkpoint in ", dir, " can be read",
                      touched ? ", and the state of the engine is now invalid" : "", ": ",
                      join(skipped, "; ")));
}

Loaded load(const Checkpointable& what, const std::string& dir, const LoadOptions& options) {
  std::optional<Loaded> loaded = load_if_any(what, dir, options);
  if (loaded) return std::move(*loaded);
  const std::string kind = kind_of_file(dir);
  throw UsageError(str(quote(dir), " is ",
                       kind == "nothing"    ? "missing"
                       : kind == "a folder" ? "a folder without a checkpoint"
                                            : kind,
                       ". It must be the folder of a checkpoint (step-… with a ",
                       checkpoint::kManifestName, "), or a folder that contains checkpoints"));
}

}  // namespace tessera
