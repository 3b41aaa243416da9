#include "tessera/simulator/program.h"

#include <algorithm>
#include <cmath>

namespace tessera::simulator {
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

bool makes_weight_gradients(Kind kind) {
  return kind == Kind::backward || kind == Kind::backward_weight;
}

int buckets_of(const Scenario& s, double bytes) {
  return std::max(1, static_cast<int>(std::ceil(bytes / s.bucket_bytes)));
}

class Maker {
 public:
  Maker(const Scenario& scenario, int rank)
      : s_(scenario),
        chunks_(scenario.chunks[static_cast<std::size_t>(rank)]),
        seen_(chunks_.size()),
        left_(chunks_.size(), scenario.schedule.micros) {}

  Op compute(const schedule::Action& action) {
    const auto c = static_cast<std::size_t>(action.chunk);
    const Chunk& chunk = chunks_[c];
    Op op;
    op.kind = action.kind;
    double seconds = 0;
    switch (action.kind) {
      case Kind::forward:
        seconds = chunk.forward;
        op.tp = chunk.tp_forward;
        break;
      case Kind::backward:
        seconds = chunk.backward_input + chunk.backward_weight;
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
    if (s_.dp() > 1) {
      gathers(op, chunk, c);
      reduces(op, chunk, c);
    }
    return op;
  }

  Program program;

 private:
  void gathers(Op& op, const Chunk& chunk, std::size_t c) {
    if (s_.zero == 3) {
      const bool forward = op.kind == Kind::forward;
      const bool backward = op.kind == Kind::backward || op.kind == Kind::backward_input;
      if (forward || (backward && !s_.keep_params)) need(op, chunk.units, chunk.param_bytes);
    } else if (s_.zero > 0 && op.kind == Kind::forward && !seen_[c]) {
      // The parameters that the last step has updated.
      seen_[c] = true;
      const int pieces = buckets_of(s_, chunk.param_bytes);
      need(op, pieces, chunk.param_bytes);
      if (!s_.overlap_param_gather) {
        op.gathers = false;
        op.pieces = 1;
      }
    }
  }

  void need(Op& op, int pieces, double bytes) {
    op.gathers = true;
    op.pieces = pieces;
    program.gathers.insert(program.gathers.end(), static_cast<std::size_t>(pieces), bytes / pieces);
  }

  void reduces(Op& op, const Chunk& chunk, std::size_t c) {
    if (!makes_weight_gradients(op.kind)) return;
    const bool last = --left_[c] == 0;
    if (s_.policy == ReducePolicy::last && !last) return;
    const int buckets = s_.zero == 3 ? chunk.units : buckets_of(s_, chunk.grad_bytes);
    const double bytes = chunk.grad_bytes / buckets;
    if (!s_.overlap_grad_reduce && s_.policy == ReducePolicy::last) {
      program.tail.push_back({buckets, bytes});
      return;
    }
    op.reduces = buckets;
    op.reduce_bytes = bytes;
    op.blocking = !s_.overlap_grad_reduce;
  }

  const Scenario& s_;
  const std::vector<Chunk>& chunks_;
  std::vector<bool> seen_;
  std::vector<int> left_;  // [chunk]: micro-batches whose weight gradients are to come
};

}  // namespace

std::vector<Program> make_programs(const Scenario& s) {
  const auto where = homes(s.schedule);
  std::vector<Program> programs;
  for (int r = 0; r < s.schedule.ranks; ++r) {
    Maker maker(s, r);
    for (const schedule::Action& action : s.schedule.actions[static_cast<std::size_t>(r)]) {
      Op op;
      if (is_compute(action.kind)) {
        op = maker.compute(action);
      } else {
        // Activations come from the stage before and go to the one after, gradients the other way.
        const bool after =
            action.kind == Kind::send_activation || action.kind == Kind::receive_gradient;
        const int stage = s.schedule.stage(r, action.chunk) + (after ? 1 : -1);
        op.kind = action.kind;
        op.peer = where[static_cast<std::size_t>(stage)].rank;
        op.peer_chunk = where[static_cast<std::size_t>(stage)].chunk;
      }
      op.micro = action.micro;
      op.chunk = action.chunk;
      maker.program.ops.push_back(op);
    }
    Program& program = maker.program;
    const int all = static_cast<int>(program.gathers.size());
    if (s.zero == 3) {
      program.prefetch = s.overlap_param_gather ? 1 : 0;
      program.gathers_at_start = s.overlap_param_gather ? std::min(all, 2) : 0;
    } else {
      program.gathers_at_start = all;
      program.wait_at_start = !s.overlap_param_gather;
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace tessera::simulator
