#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tessera/train/metrics.h"
#include "tessera/train/tensorboard.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// Error handling for a log of the run. If the file cannot be opened or written, as on a full disk,
// it warns once, and training continues; later writes are attempted again. check_run() rejects
// wrong paths before ranks are started.
class RunLog {
 public:
  explicit RunLog(const char* flag) : flag_(flag) {}
  void write(const std::function<void()>& put);
  // Returns a line with the number of lost records; "" if there are none.
  std::string ending() const;

 private:
  const char* const flag_;
  std::int64_t failed_ = 0;
};

// Records of the steps in the files of --metrics and --tensorboard.
class Records {
 public:
  // `prints`: this process writes the files and warnings. `goes_on`: the files have steps of other
  // sessions of this run.
  Records(const RunConfig& config, bool prints, bool goes_on);

  void open_events(std::int64_t first_step);
  // Writes the finished steps that are not written yet.
  void write_steps(Trainer& trainer);
  // Leaves out the steps so far, which were rolled back.
  void skip_steps(const Trainer& trainer) { written_ = trainer.history().size(); }
  // Leaves out the steps so far that are in the file already. The process that wrote them may be
  // lost.
  void skip_written_steps(const Trainer& trainer);
  void write(const Summary& summary);

  std::size_t written() const { return written_; }
  std::string ending() const { return metrics_log_.ending() + tensorboard_log_.ending(); }

 private:
  bool writes_lines() const { return !config_.metrics.empty() && prints_; }
  void open_metrics();

  const RunConfig& config_;
  const bool prints_, goes_on_;
  RunLog metrics_log_{"--metrics"}, tensorboard_log_{"--tensorboard"};
  std::optional<LineFile> lines_;
  std::optional<EventFile> events_;
  std::size_t written_ = 0;  // steps of the history
  bool begun_ = false;       // the first line is in the file
};

}  // namespace tessera::train
