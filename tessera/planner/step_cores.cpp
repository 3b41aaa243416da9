#include "tessera/planner/step_cores.h"

#include <algorithm>

#include "tessera/planner/step_play.h"

namespace tessera::planner {
namespace {

// What of a core each thread has while so many ranks are busy.
double core_share(const Hardware& hardware, double busy) {
  return std::min(1.0, hardware.cores / std::max(1.0, busy * hardware.units));
}

// Of the step; waiting for collectives is no rest, since ranks of a processor move the bytes.
double busy_share(const Step& step) {
  if (step.pp() == 1) return 1;
  const PlayedStep played = play_step(step, step.places());
  double busy = 0;
  for (std::size_t r = 0; r < step.chunks.size(); ++r) {
    for (const StepChunk& chunk : step.chunks[r]) {
      busy += static_cast<double>(step.micros) * chunk.total();
    }
    busy += played.ranks[r].comm[Axis::dp_shard] + played.ranks[r].comm[Axis::dp_replicate];
  }
  return played.end > 0 ? std::min(1.0, busy / (played.end * step.pp())) : 1;
}

}  // namespace

void share_cores(Step& step, const Hardware& hardware) {
  if (!hardware.cpu || hardware.cores < 1) return;
  const double measured = core_share(hardware, hardware.per_node);
  if (measured >= 1) return;  // everybody has a core
  const int ranks = std::min(step.world(), step.topology.per_node);
  const double factor = measured / core_share(hardware, ranks * busy_share(step));
  for (std::vector<StepChunk>& chunks : step.chunks) {
    for (StepChunk& chunk : chunks) {
      for (double* const seconds : {&chunk.forward, &chunk.backward_input, &chunk.backward_weight,
                                    &chunk.tp_forward, &chunk.tp_backward}) {
        *seconds *= factor;
      }
    }
  }
}

}  // namespace tessera::planner
