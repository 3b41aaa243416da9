#include "tessera/planner/step_ops.h"

#include <algorithm>

namespace tessera::planner {

using schedule::Kind;

StepOp step_op(const Step& step, Kind kind, const StepChunk& chunk, const Transfers& gathers,
               const Transfers& reductions, bool first, bool last) {
  StepOp op;
  double seconds = 0;
  switch (kind) {
    case Kind::forward:
      seconds = chunk.forward;
      op.tp = chunk.tp_forward;
      break;
    case Kind::backward:
      seconds = chunk.backward();
      op.tp = chunk.tp_backward;
      break;
    case Kind::backward_input:
      seconds = chunk.backward_input;
      op.tp = std::min(chunk.tp_backward, chunk.backward_input);
      break;
    default:
      seconds = chunk.backward_weight;
      op.tp = std::max(0.0, chunk.tp_backward - chunk.backward_input);
      break;
  }
  op.work = seconds - op.tp;
  if (step.dp() == 1) return op;
  const bool forward = kind == Kind::forward;
  if (step.zero == 3) {
    const bool backward = kind == Kind::backward || kind == Kind::backward_input;
    op.gathers = forward || (backward && !step.keep_params);
  } else if (step.zero > 0) {
    // The parameters that the last step has updated.
    op.gathers = forward && first && step.overlap_param_gather;
  }
  op.gathers = op.gathers && gathers.count > 0;  // a replica of one rank has all parameters
  if (op.gathers) op.pieces = gathers.count;
  if (kind != Kind::backward && kind != Kind::backward_weight) return op;
  if (step.policy == ReducePolicy::last && !last) return op;
  if (!step.overlap_grad_reduce && step.policy == ReducePolicy::last) {
    op.late_reduces = reductions.count;
  } else {
    op.reduces = reductions.count;
    op.blocking = !step.overlap_grad_reduce;
  }
  return op;
}

double part_of_piece(double share, int piece, int pieces) {
  constexpr double kRounding = 1e-9;
  const double part = share * pieces - piece;
  return part <= 1 + kRounding || piece + 1 == pieces ? std::min(part, 1.0) : part;
}

DpSeconds split_wait(bool shares_links, double from, double until, double shards_done,
                     double sums_ran) {
  const double after = std::max(0.0, until - std::max(from, shards_done));
  const double across = std::min(until - from, shares_links ? sums_ran : after);
  return {until - from - across, across};
}

StepStart step_start(const Step& step, int all_gathers) {
  if (step.zero == 3) return {std::min(all_gathers, 2 * step.prefetch()), false};
  return {all_gathers, !step.overlap_param_gather};
}

}  // namespace tessera::planner
