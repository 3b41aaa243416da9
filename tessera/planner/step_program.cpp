#include "tessera/planner/step_program.h"

namespace tessera::planner {
namespace {

using schedule::Kind;

// The stages as (rank, chunk), to find the other end of a message.
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
  std::vector<int> left_;  // [chunk]: micro-batches whose weight gradients are to come
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
        // Activations come from the stage before and go to the one after, gradients the other way.
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

}  // namespace tessera::planner
