#pragma once

#include <string>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// One line per rank, time to the right: F3 is the forward of micro-batch 3, B its backward, I and W
// the two halves of it; dots are the bubble. Chunks are told by a letter behind: F3a, F3b. With
// `columns` the drawing is made to fit, where there is no room for that with chunks told by case,
// F3 and f3, or without numbers; 0 is no limit. Below stand the length of the step, the bubble and
// the activations held.
std::string draw_text(const Schedule& schedule, const Durations& durations = {}, int columns = 0);

// The same as an image, complete in itself.
std::string draw_svg(const Schedule& schedule, const Durations& durations = {});

}  // namespace tessera::schedule
