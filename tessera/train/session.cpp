#include "tessera/train/session.h"

#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "tessera/core/log.h"
#include "tessera/core/progress.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/data/source.h"
#include "tessera/train/report.h"
#include "tessera/train/trace.h"

namespace tessera::train {
namespace {

std::string short_number(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string status(const StepMetrics& step, const Summary* summary = nullptr) {
  const double rate = summary != nullptr ? summary->tokens_per_s : step.tokens_per_s();
  const double time = summary != nullptr ? summary->step_s : step.step_s;
  return str("loss ", short_number(step.loss, 4), "  ", format_count(std::llround(rate)),
             " tokens/s  ", format_time(time), "/step  ", format_bytes(step.mem_peak_bytes));
}

std::string ending(Trainer& trainer, const Summary& summary,
                   const std::vector<std::string>& answers) {
  const Resolved& resolved = trainer.resolved();
  std::string text = "\n" + memory_table(summary) + "\n";
  text += traffic_table(summary, resolved.ranks) + "\n" + time_table(trainer.history());
  if (!answers.empty()) {
    text += "\n  what it answers\n";
    for (const std::string& line : answers) text += "    " + line + "\n";
  }
  text += str("\n  loss ", short_number(summary.first_loss, 4), " → ",
              short_number(summary.last_loss, 4), " in ", summary.steps,
              summary.steps == 1 ? " step" : " steps", ", ",
              format_count(std::llround(summary.tokens_per_s)), " tokens/s; parameters ",
              summary.params_hash, "\n");
  if (summary.skipped > 0) {
    text += str("  ", summary.skipped, " steps skipped: their gradients were not finite\n");
  }
  return text;
}

}  // namespace

void check_files(const TrainConfig& config, const Resolved& resolved) {
  if (!config.metrics.empty()) check_writable(config.metrics, "--metrics");
  if (!config.trace.empty()) check_writable(config.trace, "--trace");
  if (config.data != "synthetic") data::text_file(config.data, resolved.seq, 0);
}

bool run_session(const TrainConfig& config, const comm::Group& world, const StopAsked& stop) {
  const bool speaks = world.rank() == 0;
  std::optional<LineFile> lines;
  if (!config.metrics.empty() && speaks) lines.emplace(config.metrics, "--metrics");
  Trainer trainer(config, world);
  if (speaks) {
    write_all(2, trainer.describe());
    if (config.comm == "off") {
      write_all(2,
                "NOT SYNCHRONISED (--comm off): every rank trains a model of its own. For "
                "measuring only; the loss is that of rank 0.\n");
    }
  }
  bool interrupted = false;
  {
    std::optional<Progress> bar;
    if (speaks) {
      ProgressOptions shown;
      shown.label = "training";
      shown.unit = "step";
      bar.emplace(config.steps, shown);
    }
    while (trainer.steps_done() < config.steps && !interrupted) {
      const StepMetrics step = trainer.step();
      if (lines) lines->write(to_json(step));
      if (bar) bar->update(trainer.steps_done(), status(step));
      interrupted = trainer.agree(stop && stop());
    }
    if (bar) bar->finish();
  }
  Summary summary = trainer.summary();
  summary.interrupted = interrupted;
  const std::vector<std::string> answers = trainer.answers(interrupted ? 0 : config.samples);
  trainer.write_trace();
  if (lines) lines->write(to_json(summary));
  if (speaks) {
    write_all(1, ending(trainer, summary, answers));
    if (interrupted) write_all(2, str("stopped after step ", summary.steps, "\n"));
  }
  world.barrier();  // nobody leaves while another still needs it
  return !interrupted;
}

}  // namespace tessera::train
