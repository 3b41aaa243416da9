#pragma once

#include <string>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Draws one line per rank, with time to the right. F3 is the forward of micro-batch 3, B its
// backward, I and W the two halves of the backward, and dots are the bubble. A letter after the
// number marks the chunk: F3a, F3b. The drawing fits into `columns`; 0: no limit. If space is
// short, the case of the letter marks the chunk, F3 and f3, and then numbers are left out. The last
// line has the length of the step, the bubble and the activations held.
std::string draw_text(const Schedule& schedule, const Durations& durations = {}, int columns = 0);

// Draws the schedule as a self-contained SVG image.
std::string draw_svg(const Schedule& schedule, const Durations& durations = {});

}  // namespace tessera::schedule
