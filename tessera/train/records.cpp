#include "tessera/train/records.h"

#include <chrono>
#include <filesystem>
#include <system_error>

#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::train {
namespace {

// Returns the absolute path of the trace, for readers of the metrics.
std::string trace_file(const RunConfig& config) {
  std::error_code problem;
  return config.trace.empty() ? "" : std::filesystem::absolute(config.trace, problem).string();
}

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void RunLog::write(const std::function<void()>& put) {
  try {
    put();
  } catch (const Error& error) {
    if (failed_++ > 0) return;
    const std::string why = error.what(), flag = str(flag_, ": ");
    write_all(2, str("\ntessera train: warning: ", why.starts_with(flag) ? "" : flag, why,
                     ". Training continues; records that cannot be written are lost.\n"));
  }
}

std::string RunLog::ending() const {
  return failed_ == 0 ? "" : str(flag_, ": ", plural(failed_, "record"), " could not be written\n");
}

Records::Records(const RunConfig& config, bool prints, bool goes_on)
    : config_(config), prints_(prints), goes_on_(goes_on || config.resume != "none") {
  if (writes_lines()) metrics_log_.write([this] { open_metrics(); });
}

void Records::open_metrics() {
  if (!lines_) lines_.emplace(config_.metrics, "--metrics", goes_on_);
}

void Records::open_events(std::int64_t first_step) {
  if (config_.tensorboard.empty() || !prints_) return;
  tensorboard_log_.write(
      [&] { events_.emplace(config_.tensorboard, "--tensorboard", first_step); });
}

void Records::write_steps(Trainer& trainer) {
  for (; written_ < trainer.history().size(); ++written_) {
    StepMetrics step = trainer.history()[written_];
    if (writes_lines()) {
      trainer.put_ranks(step);
      const std::string line = begun_ ? to_json(step)
                                      : first_line(step, trainer.expected(), trainer.steps_in_all(),
                                                   trace_file(config_), unix_now());
      metrics_log_.write([&] {
        open_metrics();
        lines_->write(line);
        begun_ = true;
      });
    }
    if (events_) tensorboard_log_.write([&] { events_->write(step); });
  }
}

void Records::skip_written_steps(const Trainer& trainer) {
  if (!writes_lines()) return skip_steps(trainer);
  const std::int64_t last = last_step_in(config_.metrics);
  begun_ = last > 0;
  while (written_ < trainer.history().size() && trainer.history()[written_].step <= last) {
    ++written_;
  }
}

void Records::write(const Summary& summary) {
  if (!writes_lines()) return;
  metrics_log_.write([&] {
    open_metrics();
    lines_->write(to_json(summary));
  });
}

}  // namespace tessera::train
