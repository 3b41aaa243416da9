#include "tessera/planner/step_program.h"

#include <algorithm>

namespace tessera::planner {
namespace {

using schedule::Kind;

// Returns the (rank, chunk) of each stage, to find the other end of a message.
std::vector<schedule::Schedule::Home> homes(const schedule::Schedule& schedule) {
  std::vector<schedule::Schedule::Home> all(static_cast<std::size_t>(schedule.stage_count()));
  for (int r = 0; r < schedule.ranks; ++r) {
    for (int c = 0; c < schedule.chunks; ++c) {
      all[static_cast<std::size_t>(schedule.stage(r, c))] = {r, c};
    }
  }
  return all;
}

class ProgramMaker {
 public:
  ProgramMaker(const Step& step, const Places& places, int rank, int micros)
      : s_(step),
        chunks_(step.chunks[static_cast<std::size_t>(rank)]),
        seen_(chunks_.size()),
        left_(chunks_.size(), micros) {
    for (const StepChunk& chunk : chunks_) {
      program.chunks.push_back({s_.gathers(chunk, places), s_.reductions(chunk, places)});
    }
  }

  Op compute(const schedule::Action& action) {
    const auto c = static_cast<std::size_t>(action.chunk);
    const bool first = action.kind == Kind::forward && !seen_[c];
    const bool weights = action.kind == Kind::backward || action.kind == Kind::backward_weight;
    const bool last = weights && --left_[c] == 0;
    const RankProgram::OfChunk& transfers = program.chunks[c];
    Op op;
    static_cast<StepOp&>(op) =
        step_op(s_, action.kind, chunks_[c], transfers.gather, transfers.reduce, first, last);
    if (op.gathers || (first && s_.zero > 0)) {
      program.gathers.insert(program.gathers.end(),
                             static_cast<std::size_t>(transfers.gather.count), action.chunk);
    }
    if (first) seen_[c] = true;
    op.kind = action.kind;
    return op;
  }

  RankProgram program;

 private:
  const Step& s_;
  const std::vector<StepChunk>& chunks_;
  std::vector<bool> seen_;
  std::vector<int> left_;  // [chunk]: micro-batches whose weight gradients are pending
};

}  // namespace

std::vector<RankProgram> make_rank_programs(const Step& s, const Places& places,
                                            const schedule::Schedule& schedule) {
  const auto where = homes(schedule);
  std::vector<RankProgram> programs;
  for (int r = 0; r < schedule.ranks; ++r) {
    ProgramMaker maker(s, places, r, schedule.micros);
    maker.program.ops.reserve(schedule.actions[static_cast<std::size_t>(r)].size());
    for (const schedule::Action& action : schedule.actions[static_cast<std::size_t>(r)]) {
      Op op;
      if (is_compute(action.kind)) {
        op = maker.compute(action);
      } else {
        // Activations come from the previous stage and go to the next; gradients go the other way.
        const bool after =
            action.kind == Kind::send_activation || action.kind == Kind::receive_gradient;
        const int stage = schedule.stage(r, action.chunk) + (after ? 1 : -1);
        op.kind = action.kind;
        op.peer = where[static_cast<std::size_t>(stage)].rank;
        op.peer_chunk = where[static_cast<std::size_t>(stage)].chunk;
      }
      op.micro = action.micro;
      op.chunk = action.chunk;
      maker.program.ops.push_back(op);
    }
    RankProgram& program = maker.program;
    program.start = step_start(s, static_cast<int>(program.gathers.size()));
    programs.push_back(std::move(program));
  }
  return programs;
}

using schedule::Kind;

// Takes the communication that fits into `seconds`, axis by axis.
static PerAxis<double> comm_within(const PerAxis<double>& comm, double seconds) {
  PerAxis<double> taken;
  for (const Axis axis : kAllAxes) {
    taken[axis] = std::min(comm[axis], seconds);
    seconds -= taken[axis];
  }
  return taken;
}

StepOp step_op(const Step& step, Kind kind, const StepChunk& chunk, const Transfers& gathers,
               const Transfers& reductions, bool first, bool last) {
  StepOp op;
  double seconds = 0;
  switch (kind) {
    case Kind::forward:
      seconds = chunk.forward;
      op.comm = chunk.forward_comm;
      break;
    case Kind::backward:
      seconds = chunk.backward();
      op.comm = chunk.backward_comm;
      break;
    case Kind::backward_input:
      seconds = chunk.backward_input;
      op.comm = comm_within(chunk.backward_comm, chunk.backward_input);
      break;
    default:
      seconds = chunk.backward_weight;
      op.comm = chunk.backward_comm;
      const PerAxis<double> before = comm_within(chunk.backward_comm, chunk.backward_input);
      for (const Axis axis : kAllAxes) op.comm[axis] -= before[axis];
      break;
  }
  op.work = seconds - sum(op.comm);
  if (!step.averages_gradients()) return op;
  const bool forward = kind == Kind::forward;
  if (step.zero == 3) {
    const bool backward = kind == Kind::backward || kind == Kind::backward_input;
    op.gathers = forward || (backward && !step.keep_params);
  } else if (step.zero > 0) {
    // Parameters that the previous step updated.
    op.gathers = forward && first && step.overlap_param_gather;
  }
  op.gathers = op.gathers && gathers.count > 0;  // a replica of one rank holds all parameters
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
