#include "tessera/train/session.h"

#include <ATen/ops/empty.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/memory/device_memory.h"
#include "tessera/process/stack.h"
#include "tessera/process/step_watchdog.h"
#include "tessera/train/adapters.h"
#include "tessera/train/from_config.h"
#include "tessera/train/init_from.h"
#include "tessera/train/memory_check.h"
#include "tessera/train/records.h"
#include "tessera/train/recovery.h"
#include "tessera/train/report.h"
#include "tessera/train/resuming.h"
#include "tessera/train/run_trace.h"
#include "tessera/train/tensorboard.h"

namespace tessera::train {
namespace {

// Checks memory before the model is built, for an error with numbers instead of one from the
// allocator.
void check_device(const RunConfig& config, const comm::Group& world) {
  const c10::Device device = device_of(config, world.rank(), world.size());
  if (device.is_cpu()) return;
  at::empty({1}, at::device(device));  // initializes the device: its memory is unknown before
  if (const auto free = memory::device_free(device)) {
    const bool limited = config.memory_limit > 0 && config.memory_limit < *free;
    check_device_memory(config, resolve(config, world.size()),
                        limited ? config.memory_limit : *free,
                        limited ? "--memory-limit" : device.str());
  }
}

// Checks validation data before ranks are started: otherwise an error in it would appear only when
// it is first read, perhaps hours into the run.
void check_validation(const RunConfig& config, const Resolved& resolved) {
  const auto source = make_validation_source(config, resolved);
  if (!source) return;
  if (source->vocab() > resolved.model.vocab) {
    throw UsageError(Flag("val-data"), str(source->name(), " has ", source->vocab(),
                                           " different tokens; must be at most the ",
                                           resolved.model.vocab, " of the model"));
  }
  if (!source->fingerprint().empty() && !resolved.tokenizer.empty() &&
      source->fingerprint() != resolved.tokenizer) {
    throw UsageError(Flag("val-data"), str(source->name(), " was made with another tokenizer (",
                                           source->fingerprint(), ") than --data ", config.data,
                                           " (", resolved.tokenizer, "); must be the same"));
  }
  source->check(resolved.model.vocab);
}

// Decides after which steps a checkpoint is saved.
class SaveSchedule {
 public:
  // `prints`: this process checks the clock; Trainer::agree() shares its decision.
  SaveSchedule(const RunConfig& config, bool prints)
      : saves_(!config.save.empty()),
        every_(config.save_every),
        minutes_(prints && config.save_every == 0 ? config.save_minutes : 0) {}

  bool is_due_by_time() const {
    return saves_ && minutes_ > 0 &&
           Clock::now() - last_ >= std::chrono::duration<double, std::ratio<60>>(minutes_);
  }
  // Returns true if step `step` is followed by a save. `asked`: a rank requested it, or the
  // step is the last one.
  bool is_due(std::int64_t step, bool asked) const {
    return saves_ && (asked || (every_ > 0 && step % every_ == 0));
  }
  void restart_clock() { last_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  const bool saves_;
  const std::int64_t every_;
  const double minutes_;
  Clock::time_point last_ = Clock::now();
};

// Reports steps that hang, with the stacks of this process. If the launcher restarts ranks, aborts
// the process when it gives a step up.
class HangReports {
 public:
  HangReports(const RunConfig& config, int rank, const Trainer& trainer, const SessionNotes& notes)
      : rank_(rank), trainer_(trainer), notes_(notes), watchdog_({}, actions(config)) {}

  void begin(std::int64_t step) { watchdog_.begin(step); }
  void end() { watchdog_.end(); }

 private:
  process::StepWatchdog::Actions actions(const RunConfig& config) {
    process::StepWatchdog::Actions actions;
    actions.report = [this](const std::string& what) { report(what); };
    if (config.max_restarts > 0) {
      actions.give_up = [this](const std::string& what) {
        report(what + ": this rank aborts to be restarted");
        if (notes_.giving_up) notes_.giving_up(str(what, "; ", trainer_.last_calls()));
        std::abort();
      };
    }
    return actions;
  }

  void report(const std::string& what) {
    std::string text =
        str("tessera train: rank ", rank_, ": ", what, "; ", trainer_.last_calls(), "\n");
    for (const std::string& call : stack_.read()) text += "    " + call + "\n";
    for (const process::ThreadCalls& other : process::other_stacks()) {
      text += str("  ", plural(other.threads, "thread"), " called ", quote(other.name), ":\n");
      for (const std::string& call : other.calls) text += "    " + call + "\n";
    }
    write_all(2, text);
  }

  const int rank_;
  const Trainer& trainer_;
  const SessionNotes& notes_;
  process::OwnStack stack_;
  process::StepWatchdog watchdog_;  // last, because its thread uses the others
};

// One training run on one rank: start() describes it and loads a checkpoint, train() makes the
// steps and finish() reports the result. All three are collective.
class Session {
 public:
  // `prints`: this process prints for all ranks.
  Session(const RunConfig& config, const comm::Group& world, Trainer& trainer, Records& records,
          bool prints, const SessionNotes& notes, const SessionRecovery* recovery)
      : config_(config),
        world_(world),
        trainer_(trainer),
        records_(records),
        prints_(prints),
        notes_(notes),
        recovery_(recovery) {}

  void start();
  // Instead of start(): continues with the state of the last generation.
  void take_over();
  // Returns the request that ended it before the last step, or RunRequest::none.
  RunRequest train(const RunRequests& requests);
  Ended finish(bool stopped);

 private:
  void say(const std::string& text) const {
    if (prints_) write_all(2, text);
  }
  void note_step() const {
    if (notes_.last_step != nullptr) *notes_.last_step = trainer_.steps_done();
  }
  bool all_done() const { return trainer_.steps_done() >= trainer_.steps_in_all(); }
  void take_step(HangReports& hangs);
  void save(SaveSchedule& saves);
  void repeat_save(SaveSchedule& saves);
  bool rolled_back();
  RunRequest agree(const RunRequests& requests, const SaveSchedule& saves);
  bool evaluates() const;
  void write_steps();
  bool print_report(const Summary& summary, const std::vector<std::string>& answers) const;
  void print_saved(const LastSave& saved, bool stopped) const;

  const RunConfig& config_;
  const comm::Group& world_;
  Trainer& trainer_;
  Records& records_;
  const bool prints_;
  const SessionNotes& notes_;
  const SessionRecovery* const recovery_;  // null: the run ends when a rank is lost
  bool took_over_ = false;
};

void Session::take_over() {
  recovery_->state.give_to(trainer_, world_);
  took_over_ = true;
  const comm::Generation& generation = recovery_->generation;
  std::vector<std::string> members;
  for (const int process : generation.members) members.push_back(str(process));
  const auto pause = recovery_->state.pause();
  say(str("\ngeneration ", generation.number, ": ", plural(generation.replicas, "replica"), " on ",
          plural(world_.size(), "rank"), " (processes ", join(members, " "),
          "); continues after step ", trainer_.steps_done(),
          pause ? str(", ", fixed(*pause, 3), " s after its end") : std::string(), "\n"));
  note_step();
  records_.open_events(trainer_.steps_done() + 1);
  records_.skip_written_steps(trainer_);
}

void Session::start() {
  say(trainer_.describe());
  if (config_.comm == Comm::off) {
    say("NOT SYNCHRONIZED (--comm off): every rank trains its own model. For benchmarking "
        "only; the loss is that of rank 0.\n");
  }
  std::vector<std::string> notes = trainer_.data_notes();
  const auto resumed = trainer_.resume(notes);
  for (const std::string& note : notes) say(visible_lines(note) + "\n");
  if (prints_ && !resumed) {
    keep_companions(config_);
    std::vector<std::string> start = start_notes(config_);
    const Resolved& resolved = trainer_.resolved();
    start.push_back(adapters_note(config_, resolved.model));
    start.push_back(context_note(resolved.model, resolved.seq));
    for (const std::string& note : start) {
      if (!note.empty()) say(visible_lines(note) + "\n");
    }
  }
  if (resumed) say(str("resumed after step ", trainer_.steps_done(), ": ", *resumed, "\n"));
  if (all_done()) {
    say(str("nothing is left to train: all ", plural(trainer_.steps_in_all(), "step"),
            " are done. Use a larger --steps to continue.\n"));
  }
  note_step();
  records_.open_events(trainer_.steps_done() + 1);
}

RunRequest Session::train(const RunRequests& requests) {
  if (recovery_ != nullptr) recovery_->established();
  std::optional<Progress> bar;
  if (prints_) {
    ProgressOptions shown;
    shown.label = "training";
    shown.unit = "step";
    shown.before = trainer_.steps_done();
    bar.emplace(trainer_.steps_in_all(), shown);
  }
  SaveSchedule saves(config_, prints_);
  HangReports hangs(config_, world_.rank(), trainer_, notes_);
  RunRequest ended = RunRequest::none;
  repeat_save(saves);
  while (!all_done() && ended == RunRequest::none) {
    take_step(hangs);
    if (rolled_back()) continue;
    const RunRequest request = agree(requests, saves);
    if (request == RunRequest::stop || (request == RunRequest::regroup && !all_done()))
      ended = request;
    const bool asked = request == RunRequest::save || request == RunRequest::stop;
    const bool is_due = saves.is_due(trainer_.steps_done(), asked || all_done());
    if (is_due || all_done() || ended != RunRequest::none) trainer_.finish();
    if (evaluates() && ended != RunRequest::stop) trainer_.evaluate();
    if (bar && !trainer_.history().empty()) {
      bar->update(trainer_.steps_done(), step_line(trainer_.history().back()));
    }
    if (is_due) save(saves);
    write_steps();
  }
  if (bar) bar->finish();
  return ended;
}

void Session::save(SaveSchedule& saves) {
  trainer_.save();
  saves.restart_clock();
}

// Repeats the evaluation and the save after the last finished step if a lost rank may have
// interrupted them.
void Session::repeat_save(SaveSchedule& saves) {
  if (!took_over_ || !recovery_->state.was_interrupted() || trainer_.steps_done() == 0) return;
  if (all_done() && trainer_.validates()) trainer_.evaluate();
  if (saves.is_due(trainer_.steps_done(), all_done())) save(saves);
  write_steps();
}

void Session::take_step(HangReports& hangs) {
  hangs.begin(trainer_.steps_done() + 1);
  trainer_.launch();
  // A step that may be rolled back is waited for; others run while the next one is prepared.
  trainer_.finish(config_.on_nan == OnNan::rollback ? 0 : 1);
  hangs.end();
  note_step();
  if (recovery_ != nullptr) recovery_->state.note_step();
}

// Loads the last checkpoint if the step was not finite and --on-nan is rollback.
bool Session::rolled_back() {
  if (config_.on_nan != OnNan::rollback || !trainer_.history().back().broke()) return false;
  const std::int64_t step = trainer_.history().back().step;
  const std::string what = trainer_.history().back().non_finite;
  const std::string from = trainer_.roll_back();
  records_.skip_steps(trainer_);
  say(str("\nstep ", step, ": ", what, ". Rolled back to ", from,
          "; data up to this step is skipped\n"));
  return true;
}

// Returns the strongest request of all ranks.
RunRequest Session::agree(const RunRequests& requests, const SaveSchedule& saves) {
  RunRequest own = requests ? requests() : RunRequest::none;
  if (own == RunRequest::none && saves.is_due_by_time()) own = RunRequest::save;
  if (own == RunRequest::none && recovery_ != nullptr && world_.rank() == 0 &&
      recovery_->is_superseded()) {
    own = RunRequest::regroup;
  }
  return static_cast<RunRequest>(trainer_.agree(static_cast<int>(own)));
}

bool Session::evaluates() const {
  const bool due = config_.eval_every > 0 && trainer_.steps_done() % config_.eval_every == 0;
  return trainer_.validates() && (due || all_done());
}

void Session::write_steps() {
  for (std::size_t i = records_.written(); i < trainer_.history().size(); ++i) {
    const StepMetrics& step = trainer_.history()[i];
    if (step.non_finite.empty()) continue;
    say(str("\nstep ", step.step, " is skipped: ", step.non_finite,
            ". Later steps like this are only counted.\n"));
  }
  records_.write_steps(trainer_);
}

Ended Session::finish(bool stopped) {
  const LastSave saved = trainer_.finish_saving();
  Summary summary = trainer_.summary();
  summary.interrupted = stopped;
  const std::vector<std::string> answers = trainer_.answers(stopped ? 0 : config_.samples);
  records_.write(summary);
  const bool printed = !prints_ || print_report(summary, answers);
  say(records_.ending());
  print_saved(saved, stopped);
  trainer_.write_trace();  // after all other output, because it may fail
  world_.barrier();        // no rank exits while another still needs it
  if (!saved.failure.empty()) return Ended::unsaved;
  if (!printed) return Ended::untold;
  if (!stopped) return Ended::done;
  return config_.save.empty() ? Ended::stopped : Ended::saved;
}

// Returns false if the tables cannot be written. A closed pipe is not an error. Others are reported
// by the exit status, after everything else is done.
bool Session::print_report(const Summary& summary, const std::vector<std::string>& answers) const {
  if (write_all(1, final_report(trainer_, summary, answers)) || errno == EPIPE) return true;
  say(str("tessera train: cannot write the tables to stdout: ", std::strerror(errno),
          ". Everything else is done.\n"));
  return false;
}

void Session::print_saved(const LastSave& saved, bool stopped) const {
  if (!saved.folder.empty()) say(str("saved: ", saved.folder, "\n"));
  if (!saved.failure.empty()) {
    say(str("NOT SAVED: the state after step ", trainer_.steps_done(),
            " is lost, because its save failed: ", saved.failure, "\n  last good checkpoint: ",
            saved.last_good.empty() ? "none" : saved.last_good, "\n"));
  }
  if (stopped) {
    say(str("stopped after step ", trainer_.steps_done(),
            config_.save.empty()    ? "; nothing was saved, because --save was not given\n"
            : saved.failure.empty() ? "; --resume auto continues from there\n"
                                    : "; --resume auto continues from the last good checkpoint\n"));
  }
}

}  // namespace

Fd check_run(const RunConfig& config, const Resolved& resolved, int ranks, int rank) {
  check_mesh(config, resolved);
  device_of(config, rank, ranks);
  Fd held;
  const bool writes = rank == 0;
  if (writes && !config.metrics.empty()) held = check_lines(config.metrics, "--metrics");
  if (writes && !config.trace.empty()) check_publishable(config.trace, "--trace");
  if (writes && !config.tensorboard.empty()) {
    check_event_folder(config.tensorboard, "--tensorboard");
  }
  // Data without a stored vocabulary is read completely: by one rank.
  const auto source = make_source(config, resolved);
  if (writes) source->check(resolved.model.vocab);
  if (writes) check_validation(config, resolved);
  predicted_step(config, resolved);
  check_resume(config, resolved);
  check_start(config, resolved);
  if (writes) check_adapters(config, resolved.model);  // reads all of the model: by one rank
  return held;
}

Ended run_session(const RunConfig& config, const comm::Group& world, const RunRequests& requests,
                  const SessionNotes& notes, const SessionRecovery* recovery) {
  const bool prints = world.rank() == 0 || world.simulated();
  check_device(config, world);
  const bool takes_over =
      recovery != nullptr && recovery->state.prepare(config, resolve(config, world.size()), world,
                                                     recovery->generation.trained);
  Records records(config, prints, takes_over);
  auto owned = std::make_unique<Trainer>(config, world);
  Trainer& trainer = *owned;
  if (recovery != nullptr) recovery->state.trainer = std::move(owned);  // outlives an error
  Session session(config, world, trainer, records, prints, notes, recovery);
  if (takes_over) {
    session.take_over();
  } else {
    session.start();
    if (recovery != nullptr) recovery->state.start();
  }
  const RunRequest ended = session.train(requests);
  if (ended == RunRequest::regroup) return Ended::regrouped;
  return session.finish(ended == RunRequest::stop);
}

}  // namespace tessera::train
