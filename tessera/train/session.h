#pragma once

#include <functional>

#include "tessera/train/trainer.h"

namespace tessera::train {

// What makes a run stop after the step that is under way.
using StopAsked = std::function<bool()>;

// Collective: trains from the first step to the last, with what a person sees of it on rank 0: the
// progress bar on stderr, and at the end three tables and a few answers of the model on stdout.
// Writes metrics and trace. Returns the exit status: 0, or 130 after it was asked to stop.
int run_session(const TrainConfig& config, const comm::Group& world, const StopAsked& stop);

}  // namespace tessera::train
