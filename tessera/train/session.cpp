#include "tessera/train/session.h"

#include <ATen/ops/empty.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/publish.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/memory/device_usage.h"
#include "tessera/process/stack.h"
#include "tessera/process/step_watchdog.h"
#include "tessera/train/adapters.h"
#include "tessera/train/from_config.h"
#include "tessera/train/init_from.h"
#include "tessera/train/memory_check.h"
#include "tessera/train/mesh_check.h"
#include "tessera/train/report.h"
#include "tessera/train/resuming.h"
#include "tessera/train/tensorboard.h"
#include "tessera/train/trace.h"

namespace tessera::train {
namespace {

std::string status(const StepMetrics& step, const Summary* summary = nullptr) {
  const double rate = summary != nullptr ? summary->tokens_per_s : step.tokens_per_s();
  const double time = summary != nullptr ? summary->step_s : step.step_s;
  const std::string gpu =
      step.gpu ? str("  GPU ", step.gpu->utilisation, "% ", std::llround(step.gpu->power_w), " W")
               : std::string();
  const std::string validated =
      step.evaluation ? str("  eval ", fixed(step.evaluation->loss(), 4)) : std::string();
  return str("loss ", fixed(step.loss, 4), validated, "  ", format_count(std::llround(rate)),
             " tokens/s  ", format_time(time), "/step  ", format_bytes(step.mem_peak_bytes), gpu);
}

std::string ending(Trainer& trainer, const Summary& summary,
                   const std::vector<std::string>& answers) {
  if (summary.steps == 0) return str("  no step was taken; parameters ", summary.params_hash, "\n");
  const Resolved& resolved = trainer.resolved();
  std::string text = "\n" + memory_table(summary) + "\n";
  text += traffic_table(summary, resolved.axes.with_dp(resolved.ranks)) + "\n" +
          time_table(trainer.history());
  if (summary.predicted.step_s) {
    text += str("  step predicted for ", trainer.config().hardware, ": ",
                format_time(*summary.predicted.step_s),
                ", median measured: ", format_time(summary.step_s), " (",
                fixed(100 * (summary.step_s / *summary.predicted.step_s - 1), 1), "%)\n");
  }
  if (summary.bubble) {
    text += str("  pipeline bubble ", fixed(100 * *summary.bubble, 1), "% of the passes; ",
                fixed(100 * *summary.predicted_bubble, 1), "% if all stages took the same time\n");
  }
  if (summary.data_prepare_s > 0) {
    text += str("  data: a step waits ", format_time(summary.data_s), "; prepared in ",
                format_time(summary.data_prepare_s), ", ", fixed(summary.data_rate(), 0),
                " × as fast as training\n");
  }
  text += trainer.graph_note();
  for (const SlowRank& slow : summary.slow_ranks) {
    text += str("  rank ", slow.rank, " is slow: its ", slow.phase, " takes ",
                fixed(slow.factor, 2), " × the median of the ranks\n");
  }
  if (summary.saves > 0) {
    text += str("  ", plural(summary.saves, "save"), " delayed training by ",
                format_time(summary.save_exposed_s), summary.saves == 1 ? ", " : " each, ",
                fixed(summary.save_exposed_percent(), 1), "% of a step\n");
  }
  if (!answers.empty()) {
    text += "\n  answers of the model\n";
    for (const std::string& line : answers) text += "    " + line + "\n";
  }
  text += str("\n  loss ", fixed(summary.first_loss, 4), " → ", fixed(summary.last_loss, 4), " in ",
              plural(summary.steps, "step"), ", ", format_count(std::llround(summary.tokens_per_s)),
              " tokens/s (median); parameters ", summary.params_hash, "\n");
  if (summary.evaluation) {
    text += str("  validation: ", describe(*summary.evaluation), "\n");
  }
  if (summary.skipped > 0) {
    text += str("  ", plural(summary.skipped, "step"), " skipped: gradients were not finite\n");
  }
  return text;
}

// Checks memory before the model is built, for an error with numbers instead of one from the
// allocator.
void check_device(const TrainConfig& config, const comm::Group& world) {
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
void check_validation(const TrainConfig& config, const Resolved& resolved) {
  const auto source = make_validation_source(config, resolved);
  if (!source) return;
  if (source->vocab() > resolved.model.vocab) {
    throw UsageError(str("--val-data: ", source->name(), " has ", source->vocab(),
                         " different tokens; must be at most the ", resolved.model.vocab,
                         " of the model"));
  }
  if (!source->fingerprint().empty() && !resolved.tokenizer.empty() &&
      source->fingerprint() != resolved.tokenizer) {
    throw UsageError(str("--val-data: ", source->name(), " was made with another tokenizer (",
                         source->fingerprint(), ") than --data ", config.data, " (",
                         resolved.tokenizer, "); must be the same"));
  }
  source->check(resolved.model.vocab);
}

// Returns the absolute path of the trace, for readers of the metrics.
std::string trace_file(const TrainConfig& config) {
  std::error_code problem;
  return config.trace.empty() ? "" : std::filesystem::absolute(config.trace, problem).string();
}

// Error handling for a log of the run. If the file cannot be opened or written, as on a full disk,
// it warns once, and training continues; later writes are attempted again. check_run() rejects
// wrong paths before ranks are started.
class RunLog {
 public:
  explicit RunLog(const char* flag) : flag_(flag) {}
  template <class Write>
  void write(Write&& put) {
    try {
      put();
    } catch (const Error& error) {
      if (failed_++ > 0) return;
      const std::string why = error.what(), flag = str(flag_, ": ");
      write_all(2, str("\ntessera train: warning: ", why.starts_with(flag) ? "" : flag, why,
                       ". Training continues; records that cannot be written are lost.\n"));
    }
  }
  // Returns a line with the number of lost records; "" if there are none.
  std::string ending() const {
    return failed_ == 0 ? ""
                        : str(flag_, ": ", plural(failed_, "record"), " could not be written\n");
  }

 private:
  const char* const flag_;
  std::int64_t failed_ = 0;
};

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Fd check_run(const TrainConfig& config, const Resolved& resolved, int ranks, int rank) {
  check_mesh(config, resolved, ranks);
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

Ended run_session(const TrainConfig& config, const comm::Group& world, const Wishes& wishes,
                  const SessionNotes& told) {
  const bool speaks = world.rank() == 0 || world.simulated();
  std::optional<LineFile> lines;
  RunLog metrics_log("--metrics"), tensorboard_log("--tensorboard");
  const bool writes_lines = !config.metrics.empty() && speaks;
  const auto open_metrics = [&] {
    if (!lines) lines.emplace(config.metrics, "--metrics", config.resume != "none");
  };
  if (writes_lines) metrics_log.write(open_metrics);
  check_device(config, world);
  Trainer trainer(config, world);
  if (speaks) {
    write_all(2, trainer.describe());
    if (config.comm == "off") {
      write_all(2,
                "NOT SYNCHRONIZED (--comm off): every rank trains its own model. For benchmarking "
                "only; the loss is that of rank 0.\n");
    }
  }
  std::vector<std::string> notes = trainer.data_notes();
  const auto resumed = trainer.resume(notes);
  if (speaks) {
    for (const std::string& note : notes) write_all(2, visible_lines(note) + "\n");
    if (!resumed) {
      keep_companions(config);
      std::vector<std::string> start = start_notes(config);
      start.push_back(adapters_note(config, trainer.resolved().model));
      start.push_back(context_note(trainer.resolved().model, trainer.resolved().seq));
      for (const std::string& note : start) {
        if (!note.empty()) write_all(2, visible_lines(note) + "\n");
      }
    }
    if (resumed)
      write_all(2, str("resumed after step ", trainer.steps_done(), ": ", *resumed, "\n"));
    if (trainer.steps_done() >= trainer.steps_in_all()) {
      write_all(2, str("nothing is left to train: all ", plural(trainer.steps_in_all(), "step"),
                       " are done. Use a larger --steps to continue.\n"));
    }
  }
  const auto note_step = [&] {
    if (told.last_step != nullptr) *told.last_step = trainer.steps_done();
  };
  note_step();
  std::optional<EventFile> events;
  if (!config.tensorboard.empty() && speaks) {
    tensorboard_log.write(
        [&] { events.emplace(config.tensorboard, "--tensorboard", trainer.steps_done() + 1); });
  }
  const bool saves = !config.save.empty();
  // Rank 0 checks the clock, and agree() shares its decision with the other ranks.
  const bool by_time = saves && config.save_every == 0 && config.save_minutes > 0 && speaks;
  auto last_save = std::chrono::steady_clock::now();
  const auto save_is_due = [&] {
    return by_time && std::chrono::steady_clock::now() - last_save >=
                          std::chrono::duration<double, std::ratio<60>>(config.save_minutes);
  };
  bool interrupted = false;
  {
    std::optional<Progress> bar;
    if (speaks) {
      ProgressOptions shown;
      shown.label = "training";
      shown.unit = "step";
      shown.before = trainer.steps_done();
      bar.emplace(trainer.steps_in_all(), shown);
    }
    process::OwnStack stack;  // declared before the watchdog, whose thread uses it
    const auto say = [&](const std::string& what) {
      std::string text =
          str("tessera train: rank ", world.rank(), ": ", what, "; ", trainer.last_calls(), "\n");
      for (const std::string& call : stack.read()) text += "    " + call + "\n";
      for (const process::ThreadCalls& other : process::other_stacks()) {
        text += str("  ", plural(other.threads, "thread"), " called ", quote(other.name), ":\n");
        for (const std::string& call : other.calls) text += "    " + call + "\n";
      }
      write_all(2, text);
    };
    process::StepWatchdog::Actions actions{say, nullptr};
    if (config.max_restarts > 0) {
      // The launcher starts the ranks again.
      actions.give_up = [&](const std::string& what) {
        say(what + ": this rank aborts to be restarted");
        if (told.giving_up) told.giving_up(str(what, "; ", trainer.last_calls()));
        std::abort();
      };
    }
    process::StepWatchdog watchdog({}, actions);
    std::size_t written = 0;  // rows of the history that are in the file
    bool begun = false;       // the first line is in the file
    while (trainer.steps_done() < trainer.steps_in_all() && !interrupted) {
      watchdog.begin(trainer.steps_done() + 1);
      trainer.launch();
      // A step that may be rolled back is waited for; others run while the next one is prepared.
      trainer.finish(config.on_nan == "rollback" ? 0 : 1);
      watchdog.end();
      note_step();
      if (config.on_nan == "rollback" && trainer.history().back().broke()) {
        const std::int64_t step = trainer.history().back().step;
        const std::string what = trainer.history().back().non_finite;
        const std::string from = trainer.roll_back();
        written = trainer.history().size();
        if (speaks) {
          write_all(2, str("\nstep ", step, ": ", what, ". Rolled back to ", from,
                           "; data up to this step is skipped\n"));
        }
        continue;
      }
      Wish own = wishes ? wishes() : Wish::none;
      if (own == Wish::none && save_is_due()) own = Wish::save;
      const auto wish = static_cast<Wish>(trainer.agree(static_cast<int>(own)));
      interrupted = wish == Wish::stop;
      const bool due = config.save_every > 0 && trainer.steps_done() % config.save_every == 0;
      const bool last = trainer.steps_done() == trainer.steps_in_all();
      const bool saved = saves && (due || last || wish != Wish::none);
      if (saved || last || interrupted) trainer.finish();
      const bool evaluates = config.eval_every > 0 && trainer.steps_done() % config.eval_every == 0;
      if (trainer.validates() && !interrupted && (evaluates || last)) trainer.evaluate();
      if (bar && !trainer.history().empty()) {
        bar->update(trainer.steps_done(), status(trainer.history().back()));
      }
      if (saved) {
        trainer.save();
        last_save = std::chrono::steady_clock::now();
      }
      for (; written < trainer.history().size(); ++written) {
        StepMetrics step = trainer.history()[written];
        if (speaks && !step.non_finite.empty()) {
          write_all(2, str("\nstep ", step.step, " is skipped: ", step.non_finite,
                           ". Later steps like this are only counted.\n"));
        }
        if (writes_lines) {
          trainer.put_ranks(step);
          const std::string line =
              begun ? to_json(step)
                    : first_line(step, trainer.expected(), trainer.steps_in_all(),
                                 trace_file(config), unix_now());
          metrics_log.write([&] {
            open_metrics();
            lines->write(line);
            begun = true;
          });
        }
        if (events) tensorboard_log.write([&] { events->write(step); });
      }
    }
    if (bar) bar->finish();
  }
  const LastSave saved = trainer.finish_saving();
  Summary summary = trainer.summary();
  summary.interrupted = interrupted;
  const std::vector<std::string> answers = trainer.answers(interrupted ? 0 : config.samples);
  if (writes_lines) {
    metrics_log.write([&] {
      open_metrics();
      lines->write(to_json(summary));
    });
  }
  bool untold = false;
  if (speaks) {
    // A closed pipe is not an error. Other errors are reported after everything else is done.
    if (!write_all(1, ending(trainer, summary, answers)) && errno != EPIPE) {
      untold = true;
      write_all(2, str("tessera train: cannot write the tables to stdout: ", std::strerror(errno),
                       ". Everything else is done.\n"));
    }
    write_all(2, metrics_log.ending() + tensorboard_log.ending());
    if (!saved.folder.empty()) write_all(2, str("saved: ", saved.folder, "\n"));
    if (!saved.failure.empty()) {
      write_all(
          2, str("NOT SAVED: the state after step ", trainer.steps_done(),
                 " is lost, because its save failed: ", saved.failure, "\n  last good checkpoint: ",
                 saved.last_good.empty() ? "none" : saved.last_good, "\n"));
    }
    if (interrupted) {
      write_all(2, str("stopped after step ", trainer.steps_done(),
                       !saves ? "; nothing was saved, because --save was not given\n"
                       : saved.failure.empty()
                           ? "; --resume auto continues from there\n"
                           : "; --resume auto continues from the last good checkpoint\n"));
    }
  }
  trainer.write_trace();  // after all other output, because it may fail
  world.barrier();        // no rank exits while another still needs it
  if (!saved.failure.empty()) return Ended::unsaved;
  if (untold) return Ended::untold;
  if (!interrupted) return Ended::done;
  return saves ? Ended::saved : Ended::stopped;
}

}  // namespace tessera::train
