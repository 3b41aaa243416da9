#pragma once

#include "tessera/planner/run_config.h"

namespace tessera::planner {

// Returns a Tessera run on the CPU whose ranks copy parameters: one token per step, no
// accumulation.
inline RunConfig small_run(const ModelShape& model, const char* layout, int stage,
                           const Axes& axes) {
  RunConfig run = RunConfig::for_plan();
  run.model = model;
  run.software = Software::tessera;
  run.gpu = false;
  run.gather = Gather::copy;
  run.layout = parse_state_layout(layout);
  run.zero = stage;
  run.axes = axes;
  run.seq = run.micro_batch = run.grad_accum = run.chunks = 1;
  return run;
}
inline Axes data_parallel(int dp) {
  Axes axes;
  axes.set_dp(dp);
  return axes;
}

}  // namespace tessera::planner
