#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/core/fd.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// What somebody asked for while a step was under way; the run does it after the step.
enum class Wish : std::uint8_t { none, save, stop };
using Wishes = std::function<Wish()>;

// Throws UsageError or DataError for what cannot be trained so, for devices that are not there, and
// for files that this rank cannot read or write. Changes nothing. Not collective: whoever starts
// the ranks asks first, so that one message comes and not one from each rank. What it returns is
// held until the run is over, as check_lines() has it.
[[nodiscard]] Fd check_run(const TrainConfig& config, const Resolved& resolved, int ranks,
                           int rank = 0);

// Collective: trains from the first step to the last, with what a person sees of it on rank 0: the
// progress bar on stderr, and at the end three tables and a few answers of the model on stdout.
// Writes metrics, trace and checkpoints.
enum class Ended : std::uint8_t {
  done,
  stopped,  // before the last step, as asked
  saved,    // likewise, and a checkpoint says where to go on
  unsaved,  // done or stopped, but the last save failed (--on-save-error warn)
  untold    // done or stopped, but rank 0 could not write its tables
};
// For whoever has to tell of a failure; all may be null.
struct SessionNotes {
  std::atomic<std::int64_t>* last_step = nullptr;  // that was done; there after an exception too
  // Called before the process ends itself, because a step hangs and it will be started again.
  std::function<void(const std::string& why)> giving_up;
};
Ended run_session(const TrainConfig& config, const comm::Group& world, const Wishes& wishes,
                  const SessionNotes& notes = {});

}  // namespace tessera::train
