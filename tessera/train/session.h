#pragma once

#include <functional>

#include "tessera/train/trainer.h"

namespace tessera::train {

// What makes a run stop after the step that is under way.
using StopAsked = std::function<bool()>;

// Throws UsageError or DataError for files that cannot be read or written. Not collective: whoever
// starts the ranks asks first, so that one message comes and not one from each rank.
void check_files(const TrainConfig& config, const Resolved& resolved);

// Collective: trains from the first step to the last, with what a person sees of it on rank 0: the
// progress bar on stderr, and at the end three tables and a few answers of the model on stdout.
// Writes metrics and trace. False if it was asked to stop before the last step.
bool run_session(const TrainConfig& config, const comm::Group& world, const StopAsked& stop);

}  // namespace tessera::train
