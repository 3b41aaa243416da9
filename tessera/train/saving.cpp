#include "tessera/train/saving.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/parallel/gather_texts.h"
#include "tessera/train/resuming.h"

namespace tessera::train {
namespace {

checkpoint::DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return checkpoint::DType::f32;
    case at::kBFloat16: return checkpoint::DType::bf16;
    case at::kHalf: return checkpoint::DType::f16;
    case at::kDouble: return checkpoint::DType::f64;
    default:
      throw UsageError(str("a checkpoint has no type for ", c10::toString(tensor.scalar_type())));
  }
}

checkpoint::Team team_of(const comm::Group& group) {
  checkpoint::Team team;
  team.rank = group.rank();
  team.size = group.size();
  team.gather = [group](std::string text) { return parallel::gather_texts(group, text, "checkpoint"); };
  team.broadcast = [group](std::string text) {
    return parallel::gather_texts(group, group.rank() == 0 ? text : std::string(), "checkpoint").front();
  };
  return team;
}

std::string extra(const checkpoint::Description& about, const char* key) {
  const auto found = about.extra.find(key);
  return found == about.extra.end() ? std::string() : found->second;
}

// Saving and loading have their own memory, which no tensor shows.
checkpoint::Charge charge_to(std::shared_ptr<memory::Ledger> ledger) {
  return [ledger = std::move(ledger)](std::int64_t bytes) -> std::shared_ptr<void> {
    return std::make_shared<memory::Charge>(ledger, MemoryCategory::temporary, bytes);
  };
}

// Host memory as a tensor like `values`, to copy from or to a part of it.
at::Tensor host_view(const at::Tensor& values, std::int64_t count, const std::byte* memory) {
  return at::from_blob(const_cast<std::byte*>(memory), {count}, values.options().device(at::kCPU));
}

}  // namespace

Saver::Saver(const TrainConfig& config, const Resolved& resolved, ParallelModel& model,
             const comm::Group& world)
    : config_(config),
      resolved_(resolved),
      model_(model),
      group_(world.size() == 1 ? comm::Group() : world.split(0, world.rank(), "checkpoint")),
      team_(team_of(group_)),
      charge_(charge_to(memory::current_ledger())) {
  if (config.save.empty()) return;
  checkpoint::SaveOptions options;
  options.retention = {static_cast<int>(config.keep_last), config.keep_every};
  options.warn = [](const std::string& text) { Logger().warn(text); };
  options.charge = charge_;
  options.retries = static_cast<int>(config.save_retries);
  options.return_failures = config.on_save_error == "warn";
  saver_ = std::make_unique<checkpoint::AsyncSaver>(config.save, team_, options);
}

const ParamSpec& Saver::spec(const std::string& name) const {
  for (const ParamSpec& each : model_.specs()) {
    if (each.name == name) return each;
  }
  throw Error(str("parameter ", quote(name), " has no spec"));
}

checkpoint::Description Saver::describe(std::int64_t steps, std::int64_t samples) const {
  checkpoint::Description about;
  about.step = steps;
  about.samples = samples;
  about.seed = static_cast<std::uint64_t>(config_.seed);
  about.mesh = model_.mesh().axes();
  about.stage = static_cast<int>(config_.zero);
  about.layout = config_.layout;
  about.model = shape_json(resolved_.model);
  about.extra = {{"updates", str(model_.engine().progress().steps)},
                 {"optimizer", config_.optimizer},
                 {"data", config_.data},
                 {"seq", str(resolved_.seq)},
                 {"global_batch", str(resolved_.global_batch)},
                 {"micro_batch", str(config_.micro_batch)},
                 {"overlap_tp", config_.overlap_tp ? "yes" : "no"}};
  about.params = model_.specs();
  return about;
}

// What this rank saves: of its own stretches, the elements that no rank before it has too.
std::vector<checkpoint::Shard> Saver::shards() {
  std::vector<checkpoint::Shard> shards;
  for (const zero::StateShard& piece : model_.engine().state(zero::StateScope::owned)) {
    const std::vector<Run> runs =
        checkpoint::cut(model_.counted(piece.param), piece.begin, piece.values.numel());
    if (runs.empty()) continue;
    const at::Tensor values = piece.values;
    checkpoint::Shard& out =
        shards.emplace_back(checkpoint::Shard{piece.param, piece.state, dtype_of(values), runs});
    if (values.is_cpu()) {
      out.data = static_cast<const std::byte*>(values.const_data_ptr());
      continue;
    }
    out.fetch = [values](std::int64_t begin, std::int64_t count, std::byte* into) {
      const at::NoGradGuard no_grad;
      host_view(values, count, into).copy_(values.narrow(0, begin, count));
    };
  }
  return shards;
}

void Saver::save(std::int64_t steps, std::int64_t samples) {
  if (config_.async_save) {
    saver_->start(describe(steps, samples), shards());
  } else {
    saver_->save_now(describe(steps, samples), shards());
  }
}

LastSave Saver::finish() {
  LastSave last;
  if (!saver_) return last;
  const checkpoint::Saved saved = saver_->wait();
  last.folder = saved.folder;
  last.failure = saved.failure;
  if (!last.failure.empty() && group_.rank() == 0) {
    last.last_good = checkpoint::find_latest(config_.save).folder;
  }
  return last;
}

// What keeps a run that goes on from having the bits of one that never stopped.
std::vector<std::string> Saver::differences(const std::string& folder,
                                            const checkpoint::Description& about) const {
  const auto was = [&](const char* key) { return extra(about, key); };
  std::vector<std::string> notes;
  if (about.seed != static_cast<std::uint64_t>(config_.seed) || was("data") != config_.data ||
      was("seq") != str(resolved_.seq)) {
    notes.push_back(str("other samples: ", folder, " was saved with --seed ", about.seed,
                        " --data ", was("data"), " --seq ", was("seq"),
                        ", and this run has --seed ", config_.seed, " --data ", config_.data,
                        " --seq ", resolved_.seq));
  }
  const std::string batch = str(resolved_.global_batch);
  if (!was("global_batch").empty() && was("global_batch") != batch) {
    notes.push_back(str("another batch: ", folder, " was saved with --global-batch ",
                        was("global_batch"), ", and this run has ", batch,
                        "; it goes on with the next sample, number ", about.samples,
                        ", and the learning rate goes on by steps"));
  }
  const auto shown = [](const Axes& axes, const std::string& micro, bool overlap) {
    return str("--", axes.words(" --"), " --micro-batch ", micro, overlap ? " --overlap-tp" : "");
  };
  const std::string before = shown(about.mesh, was("micro_batch"), was("overlap_tp") == "yes");
  const std::string now = shown(model_.mesh().axes(), str(config_.micro_batch), config_.overlap_tp);
  if (before != now) {
    notes.push_back(str("another order of adding: ", folder, " was saved with ", before,
                        ", and this run has ", now,
                        "; the numbers are the same within rounding, not in every bit"));
  }
  return notes;
}

Saver::Resumed Saver::read(const std::string& folder) {
  checkpoint::Checkpoint from(folder, checkpoint::local_files(), charge_);
  const checkpoint::Description& about = from.about();
  check_fits(folder, about, config_, resolved_);
  from.expect(model_.specs());
  std::vector<checkpoint::WantedShard> wanted;
  const int t = model_.mesh().place().tp(), tp = model_.mesh().axes().tp();
  for (const zero::StateShard& piece : model_.engine().state(zero::StateScope::held)) {
    const at::Tensor values = piece.values;
    checkpoint::WantedShard& want = wanted.emplace_back(checkpoint::WantedShard{
        piece.param, piece.state, dtype_of(values),
        checkpoint::cut(local_runs(spec(piece.param), t, tp), piece.begin, values.numel())});
    if (values.is_cpu()) {
      want.into = static_cast<std::byte*>(values.mutable_data_ptr());
      continue;
    }
    want.store = [values](std::int64_t begin, std::int64_t count, const std::byte* from) {
      const at::NoGradGuard no_grad;
      values.narrow(0, begin, count).copy_(host_view(values, count, from));
    };
  }
  from.load(wanted);
  const std::string text = extra(about, "updates");
  std::int64_t updates = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), updates);
  if (error != std::errc{} || end != text.data() + text.size() || updates < 0 ||
      updates > checkpoint::kMostCount) {
    throw DataError(str(folder, ": got ", quote(text), " updates of the parameters, wanted 0 to ",
                        checkpoint::kMostCount, ", as tessera train saves it"));
  }
  if (about.step > checkpoint::kMostCount / resolved_.global_batch) {
    throw DataError(str(folder, ": ", about.step, " steps of --global-batch ",
                        resolved_.global_batch, " take more samples than can be counted (",
                        checkpoint::kMostCount, ")"));
  }
  return {folder, about.step, about.samples, updates, differences(folder, about)};
}

std::optional<Saver::Resumed> Saver::resume(std::vector<std::string>& notes) {
  std::optional<Resumed> resumed;
  if (config_.resume == "auto") {
    resumed = resume_newest(&notes);
  } else {
    if (config_.resume != "none") resumed = load(chosen());
    refuse_later(resumed ? resumed->steps : 0);
  }
  if (resumed) notes.insert(notes.end(), resumed->notes.begin(), resumed->notes.end());
  return resumed;
}

// Collective: what rank 0 says, which may throw. All take the same, whatever appears meanwhile.
std::string Saver::as_rank_0(const std::function<std::string()>& say) const {
  std::string said, problem;
  if (group_.rank() == 0) {
    try {
      said = say();
    } catch (const UsageError& error) {
      problem = error.what();
    }
  }
  problem = team_.broadcast(problem);
  if (!problem.empty()) throw UsageError(problem);
  return team_.broadcast(said);
}

std::string Saver::chosen() const {
  return as_rank_0([this] { return checkpoint_to_resume(config_); });
}

void Saver::refuse_later(std::int64_t steps) const {
  if (config_.save.empty()) return;
  const std::string problem = as_rank_0([&] { return later_checkpoint(config_, steps); });
  if (!problem.empty()) throw UsageError(problem);
}

// From the newest to older ones, until all ranks can read what they need of one. Every byte that is
// read is verified, so nobody has to read all of it first.
std::optional<Saver::Resumed> Saver::resume_newest(std::vector<std::string>* notes) {
  std::string folders;
  if (group_.rank() == 0 && !config_.save.empty()) {
    nlohmann::json list = nlohmann::json::array();
    for (const std::int64_t step : checkpoint::steps_in(*checkpoint::local_files(), config_.save)) {
      list.push_back(config_.save + "/" + checkpoint::folder_name(step));
    }
    folders = list.dump();
  }
  folders = team_.broadcast(folders);
  if (folders.empty()) return std::nullopt;
  auto list = nlohmann::json::parse(folders).get<std::vector<std::string>>();
  bool touched = false;  // by one that turned out to be bad
  for (; !list.empty(); list.pop_back()) {
    std::string problem;
    Resumed resumed;
    try {
      resumed = read(list.back());
    } catch (const DataError& error) {
      problem = error.what();
    }
    const std::vector<std::string> problems = parallel::gather_texts(group_, problem, "checkpoint");
    const auto bad = std::find_if(problems.begin(), problems.end(),
                                  [](const std::string& text) { return !text.empty(); });
    if (bad == problems.end()) {
      go_on(resumed);
      return resumed;
    }
    touched = true;
    if (notes != nullptr) notes->push_back(str("passed over: ", list.back(), ": ", *bad));
  }
  if (touched) {
    throw DataError(str("--resume auto: no checkpoint under ", config_.save, " can be read",
                        notes != nullptr ? ": " + join(*notes, "; ") : std::string()));
  }
  return std::nullopt;
}

Saver::Resumed Saver::load(const std::string& folder) {
  const Resumed resumed = read(folder);
  go_on(resumed);
  return resumed;
}

// Collective: with what read() has put into the engine's memory.
void Saver::go_on(const Resumed& resumed) {
  zero::StepCounts progress;
  progress.steps = resumed.updates;
  model_.engine().resume(progress);
}

}  // namespace tessera::train
