#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/core/fd.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// Request that arrived during a step, such as by a signal. The run handles it after the step.
enum class RunRequest : std::uint8_t { none, regroup, save, stop };  // regroup: [Note: recovery]
using RunRequests = std::function<RunRequest()>;

// Throws UsageError or DataError for settings that cannot be trained, for missing devices, and for
// files that this rank cannot read or write. Changes nothing. Not collective: the launcher calls it
// before it starts the ranks, so that there is one message instead of one from each rank. Keep the
// result until the end of the run, as that of check_lines().
[[nodiscard]] Fd check_run(const RunConfig& config, const Resolved& resolved, int ranks,
                           int rank = 0);

// Result of run_session().
enum class Ended : std::uint8_t {
  done,
  stopped,   // on request, before the last step
  saved,     // stopped, with a checkpoint to resume from
  unsaved,   // done or stopped, but the last save failed (--on-save-error warn)
  untold,    // done or stopped, but rank 0 could not write its tables
  regrouped  // between two steps, to continue with other ranks
};
// Information for the report of a failure. All members may be null.
struct SessionNotes {
  std::atomic<std::int64_t>* last_step = nullptr;  // gets the last finished step
  // Called before the process aborts because a step hangs and the launcher will restart it.
  std::function<void(const std::string& why)> giving_up;
};
struct SessionRecovery;
// Collective. Trains from the first step to the last. Writes metrics, trace and checkpoints. Rank 0
// shows a progress bar on stderr, and at the end three tables and some answers of the model on
// stdout. `recovery`: null if the run ends when a rank is lost.
Ended run_session(const RunConfig& config, const comm::Group& world, const RunRequests& requests,
                  const SessionNotes& notes = {}, const SessionRecovery* recovery = nullptr);

}  // namespace tessera::train
